"""Does a network use the context? Held-out samples tell, once they are weighted as the training samples are."""

from __future__ import annotations

import math

CLEAR = 3.5  # so much is no chance; of the published runs on MNIST-M and PACS it changes no chosen epoch, 3 would one


def context_use(plain: float, weighted: float, effective: float) -> float:
    """How clearly a network answers with the context (above 0) or against it (below 0).

        (a − a_w) / √(ā(1 − ā)/n_w)

    a, a_w: `plain` and `weighted`, accuracy on held-out source samples, 0 to 1, with all alike and under weights that
        make context and label independent; ā their mean. A network that does without the context is equally good at
        both, if rare pairs of class and context are as hard as common ones.
    n_w: `effective`, the effective number of samples under the weights. The root is the standard error of a_w, more
        than that of the difference: below about a hundred samples nothing is clear. ā(1 − ā) is at least 1/n_w.

    >>> round(context_use(0.90, 0.53, 88), 1), round(context_use(0.10, 0.47, 88), 1)
    (7.7, -7.7)
    """
    middle = (plain + weighted) / 2
    return (plain - weighted) / math.sqrt(max(middle * (1 - middle), 1 / effective) / effective)
