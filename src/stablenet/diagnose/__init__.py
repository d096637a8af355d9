"""Is there context in this data that predicts the label, and could sample weights do something about it?"""

from stablenet.diagnose.findings import Diagnosis
from stablenet.diagnose.images import diagnose_images
from stablenet.diagnose.tables import diagnose_table
from stablenet.diagnose.verdict import Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose_images", "diagnose_table"]
