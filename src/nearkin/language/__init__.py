"""What language models know about class names: text encoders, names and guidance."""

from nearkin.language.image_text import ImageText
from nearkin.language.pseudo_labels import pseudo_class_names
from nearkin.language.spoken_names import spoken_class_names
from nearkin.language.text import TextEncoder, text_encoder
from nearkin.language.text_network import text_network

__all__ = [
    "ImageText",
    "TextEncoder",
    "pseudo_class_names",
    "spoken_class_names",
    "text_encoder",
    "text_network",
]
