"""Is there context in this data that predicts the label, and could sample weights do something about it?

In reading order: `subject` (what is diagnosed), `shallow` (features that show the context), `measure` (what they
predict, and what weights could remove), `verdict` (the answer), `images` and `tables` (a whole diagnosis of each kind),
`exceptions` (the samples that break the correlation), `next_steps` (what to run after it) and `diagnosis_page`.
"""

from stablenet.diagnose.images import diagnose_images
from stablenet.diagnose.tables import diagnose_table
from stablenet.diagnose.verdict import Diagnosis, Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose_images", "diagnose_table"]
