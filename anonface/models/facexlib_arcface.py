"""facexlib's ArcFace network (IR-SE50), which matches its published weights."""

from __future__ import annotations

from torch import nn

from anonface import torchvision_adapter


def build() -> nn.Module:
    """Aligned face [B, 3, 112, 112] in [-1, 1] -> unit vector [B, 512].

    Raises:
        ImportError: facexlib is not installed.
    """
    arcface = torchvision_adapter.load("facexlib.recognition.arcface_arch")
    network: nn.Module = arcface.Backbone(num_layers=50, drop_ratio=0.6, mode="ir_se")
    return network
