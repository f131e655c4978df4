"""Embeddings and labels in, one number out: every loss, one file each.

``build("multi_similarity")`` makes a loss by its name, ``names()`` lists them, ``describe(name)`` tells the
equation, the source and when to use it. ``as_loss`` makes one of anybody's function or module. A new loss is
one file with ``@register("name")`` and one import here.
"""

from nearkin.losses.adaface import AdaFace
from nearkin.losses.angular import Angular
from nearkin.losses.arcface import ArcFace
from nearkin.losses.base import Loss, build, get, names, register, unregister
from nearkin.losses.circle import Circle
from nearkin.losses.contrastive import Contrastive
from nearkin.losses.cosface import CosFace
from nearkin.losses.curricularface import CurricularFace
from nearkin.losses.description import Description, describe
from nearkin.losses.direction_multi_similarity import DirectionMultiSimilarity
from nearkin.losses.direction_proxy_nca import DirectionProxyNCA
from nearkin.losses.direction_triplet import DirectionTriplet
from nearkin.losses.fast_ap import FastAP
from nearkin.losses.histogram import Histogram
from nearkin.losses.info_nce import InfoNCE
from nearkin.losses.lifted_structure import LiftedStructure
from nearkin.losses.margin import Margin
from nearkin.losses.metric import Hyperbolic, Metric
from nearkin.losses.modifiers.language import LanguageGuidance
from nearkin.losses.modifiers.memory import CrossBatchMemory
from nearkin.losses.multi_similarity import MultiSimilarity
from nearkin.losses.nca import NCA
from nearkin.losses.npair import NPair
from nearkin.losses.pair import MinedPairLoss, PairLoss, Pairs
from nearkin.losses.pnp import PNP
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.proxy_anchor import ProxyAnchor
from nearkin.losses.proxy_gml import ProxyGML
from nearkin.losses.proxy_nca import ProxyNCA
from nearkin.losses.proxy_nca_pp import ProxyNCAPlusPlus
from nearkin.losses.proxy_repulsion import ProxyRepulsion
from nearkin.losses.ranked_list import RankedList
from nearkin.losses.ranks import RankingLoss
from nearkin.losses.recall_at_k import RecallAtK
from nearkin.losses.search_space import Choices, Range, SearchSpace
from nearkin.losses.self_taught import SelfTaught
from nearkin.losses.similarity import Measured
from nearkin.losses.smooth_ap import SmoothAP
from nearkin.losses.soft_triple import SoftTriple
from nearkin.losses.softmax import Softmax
from nearkin.losses.sub_center_arcface import SubCenterArcFace
from nearkin.losses.sup_ap import SupAP
from nearkin.losses.supcon import SupCon
from nearkin.losses.triplet import Triplet
from nearkin.losses.tuplet_margin import TupletMargin
from nearkin.losses.wrapping import WrappedLoss, as_loss, compares_samples

__all__ = [
    "NCA",
    "PNP",
    "AdaFace",
    "Angular",
    "ArcFace",
    "Choices",
    "Circle",
    "Contrastive",
    "CosFace",
    "CrossBatchMemory",
    "CurricularFace",
    "Description",
    "DirectionMultiSimilarity",
    "DirectionProxyNCA",
    "DirectionTriplet",
    "FastAP",
    "Histogram",
    "Hyperbolic",
    "InfoNCE",
    "LanguageGuidance",
    "LiftedStructure",
    "Loss",
    "Margin",
    "Measured",
    "Metric",
    "MinedPairLoss",
    "MultiSimilarity",
    "NPair",
    "PairLoss",
    "Pairs",
    "ProxyAnchor",
    "ProxyGML",
    "ProxyLoss",
    "ProxyNCA",
    "ProxyNCAPlusPlus",
    "ProxyRepulsion",
    "Range",
    "RankedList",
    "RankingLoss",
    "RecallAtK",
    "SearchSpace",
    "SelfTaught",
    "SmoothAP",
    "SoftTriple",
    "Softmax",
    "SubCenterArcFace",
    "SupAP",
    "SupCon",
    "Triplet",
    "TupletMargin",
    "WrappedLoss",
    "as_loss",
    "build",
    "compares_samples",
    "describe",
    "get",
    "names",
    "register",
    "unregister",
]
