"""What wraps any loss: modifiers, one file each, in any combination.

``build("mixup", loss)`` puts a modifier around a loss by its name, ``names()`` lists them. In a recipe each
is a table of the loss, such as ``[loss.mixup]``; several are applied in the order of :func:`in_order`,
whatever the order of the tables. A new modifier is one file with ``@register("name")`` and one import here.
"""

from nearkin.losses.modifiers.base import (
    Modifier,
    base_of,
    build,
    get,
    in_order,
    modifiers_in,
    names,
    register,
    registry,
    teacher_decay,
    unregister,
)
from nearkin.losses.modifiers.center import Center
from nearkin.losses.modifiers.distil import Distil
from nearkin.losses.modifiers.language import LanguageGuidance
from nearkin.losses.modifiers.matryoshka import Matryoshka
from nearkin.losses.modifiers.memory import CrossBatchMemory
from nearkin.losses.modifiers.mixup import MixedExamples, Mixup
from nearkin.losses.modifiers.modalities import AcrossModalities
from nearkin.losses.modifiers.pairs import OfPairs
from nearkin.losses.modifiers.s2sd import S2SD
from nearkin.losses.modifiers.unlabelled import NoLabels, OfClusters, WithUnlabelled
from nearkin.losses.modifiers.vicreg import VICReg

__all__ = [
    "S2SD",
    "AcrossModalities",
    "Center",
    "CrossBatchMemory",
    "Distil",
    "LanguageGuidance",
    "Matryoshka",
    "MixedExamples",
    "Mixup",
    "Modifier",
    "NoLabels",
    "OfClusters",
    "OfPairs",
    "VICReg",
    "WithUnlabelled",
    "base_of",
    "build",
    "get",
    "in_order",
    "modifiers_in",
    "names",
    "register",
    "registry",
    "teacher_decay",
    "unregister",
]
