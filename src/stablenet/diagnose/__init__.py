"""Is there context in this data that predicts the label, and could sample weights do something about it?

In reading order: `subject` (what is diagnosed), `measure` (what its features predict, and what weights could remove),
`verdict` (the answer), `images` and `tables` (a whole diagnosis of each kind), `next_steps` (the samples that break the
correlation, and what to run) and `diagnosis_page`.
"""

from stablenet.diagnose.images import diagnose_images
from stablenet.diagnose.tables import diagnose_table
from stablenet.diagnose.verdict import Diagnosis, Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose_images", "diagnose_table"]
