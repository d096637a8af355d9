"""Sample weights under which features are independent. Imports torch alone."""

from stablenet.weighting.fourier import random_fourier_features

__all__ = ["random_fourier_features"]
