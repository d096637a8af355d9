"""Where a network looks: smoothed gradients of several runs, checked against random networks.

In reading order: `maps` (the gradients, and whether they can be trusted) and `views` (runs side by side, and the page).
"""

from stablenet.saliency.maps import (
    SaliencySettings,
    Sanity,
    check_maps,
    randomise_parameters,
    share_on_object,
    smooth_gradients,
)
from stablenet.saliency.views import Gallery, Panel, Subjects, View, choose_subjects, look, read_subjects

__all__ = [
    "Gallery",
    "Panel",
    "SaliencySettings",
    "Sanity",
    "Subjects",
    "View",
    "check_maps",
    "choose_subjects",
    "look",
    "randomise_parameters",
    "read_subjects",
    "share_on_object",
    "smooth_gradients",
]
