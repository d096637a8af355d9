"""Where a network looks: smoothed gradients of runs side by side, checked against random networks."""

from stablenet.saliency.maps import SaliencySettings, smooth_gradients
from stablenet.saliency.masks import share_on_object
from stablenet.saliency.panels import Gallery, Panel, look
from stablenet.saliency.sanity import Sanity, check_maps, randomise_parameters
from stablenet.saliency.subjects import Subjects, choose_subjects, read_subjects
from stablenet.saliency.views import View

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
