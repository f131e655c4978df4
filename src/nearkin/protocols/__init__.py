"""How a run is selected and tested, so that its test score means something."""

# One line per protocol; each file registers what it defines.
from nearkin.protocols.closed_set import ClosedSet
from nearkin.protocols.cross_validation import CrossValidation
from nearkin.protocols.examination import Examination, examine
from nearkin.protocols.execution import execute
from nearkin.protocols.few_images import FewImages
from nearkin.protocols.final import train_final
from nearkin.protocols.fixed_validation import FixedValidation
from nearkin.protocols.less_supervision import LessSupervision
from nearkin.protocols.noisy_labels import NoisyLabels
from nearkin.protocols.retrained import Retrained
from nearkin.protocols.sealed import SealedTest, prepared, score_test, scored, seal
from nearkin.protocols.semi_supervised import SemiSupervised
from nearkin.protocols.standard import Standard
from nearkin.protocols.standard_best_on_test import StandardBestOnTest
from nearkin.protocols.unsupervised import Unsupervised
from nearkin.training.protocol import Protocol, Scorer, chooses_on_test, names, register, registry

__all__ = [
    "ClosedSet",
    "CrossValidation",
    "Examination",
    "FewImages",
    "FixedValidation",
    "LessSupervision",
    "NoisyLabels",
    "Protocol",
    "Retrained",
    "Scorer",
    "SealedTest",
    "SemiSupervised",
    "Standard",
    "StandardBestOnTest",
    "Unsupervised",
    "chooses_on_test",
    "examine",
    "execute",
    "names",
    "prepared",
    "register",
    "registry",
    "score_test",
    "scored",
    "seal",
    "train_final",
]
