"""Linear and kernel metric learning as scikit-learn estimators.

Each learner finds a linear map ``G``, and with it the distance ``d_A(x, y) = (x − y)ᵀA(x − y) = ‖Gx − Gy‖²``,
``A = GᵀG ⪰ 0``. All have ``fit(X, y)``, ``transform``, ``pair_distances``, ``get_mahalanobis_matrix`` and
``score`` (recall at 1), and go into pipelines and grid searches. Those that can also learn from pairs or
triplets have ``fit_pairs(pairs, similar)`` and ``fit_triplets(triplets)``; ``OnPairs`` and ``OnTriplets``
make these the samples of a grid search. ``Kernelized`` runs any of them in a kernel's feature space.
``Perceptron`` learns no metric: it is the classifier from which neural networks began.
"""

from __future__ import annotations

from typing import Any

from nearkin.classical.base import LEARNERS, LearnsFromPairs, LearnsFromTriplets, MetricLearner
from nearkin.classical.constraints import Constraints
from nearkin.classical.covariance import Covariance
from nearkin.classical.itml import ITML
from nearkin.classical.kernelized import Kernelized
from nearkin.classical.kwok_tsang import KwokTsang
from nearkin.classical.lfda import LFDA
from nearkin.classical.lmnn import LMNN
from nearkin.classical.mahalanobis import MahalanobisLearner
from nearkin.classical.mcml import MCML
from nearkin.classical.nca import NCA
from nearkin.classical.perceptron import Perceptron
from nearkin.classical.pola import POLA
from nearkin.classical.rca import RCA
from nearkin.classical.schultz_joachims import SchultzJoachims
from nearkin.classical.solver import Report
from nearkin.classical.weak import OnPairs, OnTriplets

__all__ = [
    "ITML",
    "LFDA",
    "LMNN",
    "MCML",
    "NCA",
    "POLA",
    "RCA",
    "Constraints",
    "Covariance",
    "Kernelized",
    "KwokTsang",
    "LearnsFromPairs",
    "LearnsFromTriplets",
    "MahalanobisLearner",
    "MetricLearner",
    "OnPairs",
    "OnTriplets",
    "Perceptron",
    "Report",
    "SchultzJoachims",
    "build",
    "names",
]


def build(name: str, **keywords: Any) -> MetricLearner:
    """Make a learner by name.

    >>> build("lmnn", n_neighbors=5)
    LMNN(n_neighbors=5)
    >>> build("lmn")
    Traceback (most recent call last):
    ValueError: unknown classical learner 'lmn': did you mean lmnn?
    """
    return LEARNERS.build(name, **keywords)


def names() -> list[str]:
    """The names of all learners.

    >>> names()[:3]
    ['covariance', 'itml', 'kernelized']
    """
    return LEARNERS.names()
