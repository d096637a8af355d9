"""Does context predict the label in this data, and could sample weights remove that correlation?

In reading order: `subject` (what is diagnosed), `measure` (what its features predict, and what weights could remove),
`verdict` (the answer), `diagnoses` (a whole diagnosis of images, or of a table) and `diagnosis_page` (the samples that
break the correlation, what to run, and the page).
"""

from stablenet.diagnose.diagnoses import diagnose_images, diagnose_table
from stablenet.diagnose.verdict import Diagnosis, Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose_images", "diagnose_table"]
