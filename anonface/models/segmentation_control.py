"""ControlNet of the sign-flip authors: a trained copy of the UNet's encoder conditions it on a face segmentation.

It departs from the usual ControlNet in two ways. Zero convolutions follow only the residual blocks and the middle block
of the copy; its first convolution and its downsamplers are added to the skip connections directly. Both networks share
the time embedding of the frozen UNet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

HINT_WIDTHS = (16, 32, 64)


class SegmentationControlNet(nn.Module):
    """A diffusers ``UNet2DModel`` and its control copy.

    Args:
        trained_unet: the frozen network; ``control_copy_unet`` must have its layout.
    """

    def __init__(self, trained_unet: Any, control_copy_unet: Any) -> None:
        super().__init__()
        self.trained_unet = trained_unet
        self.control_copy_unet = control_copy_unet
        self.time_embedding = trained_unet.time_embedding
        first, second, third = HINT_WIDTHS
        width = trained_unet.conv_in.out_channels
        self.control_copy_unet_hint_block = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, first, 3, padding=1), nn.SiLU()),
            _halving(first, second),
            _halving(second, third),
            nn.Sequential(nn.Conv2d(third, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, width, 1)),
        )
        channels = [resnet.out_channels for block in control_copy_unet.down_blocks for resnet in block.resnets]
        self.control_copy_unet_down_zero_convs = nn.ModuleList(nn.Conv2d(c, c, 1) for c in channels)
        self.control_copy_unet_mid_zero_conv = nn.Conv2d(channels[-1], channels[-1], 1)

    def hint(self, segmentation: Tensor) -> Tensor:
        """A binary segmentation [B, 3, 4 S, 4 S] -> the condition of latents of side S, [B, C, S, S]."""
        return self.control_copy_unet_hint_block(segmentation)

    def forward(self, latents: Tensor, timestep: Tensor, hint: Tensor) -> Tensor:
        """Latents [B, C, S, S] at a step ([] or [B]) under a :meth:`hint` -> the predicted noise."""
        unet, copy = self.trained_unet, self.control_copy_unet
        steps = torch.as_tensor(timestep, device=latents.device).expand(len(latents))
        time = self.time_embedding(unet.time_proj(steps).to(latents.dtype))
        x = unet.conv_in(latents)
        steered = copy.conv_in(latents) + hint
        skips = [x + steered]
        zero_convs = iter(self.control_copy_unet_down_zero_convs)
        for block, other in zip(unet.down_blocks, copy.down_blocks, strict=True):
            x, own = block(hidden_states=x, temb=time)
            steered, added = other(hidden_states=steered, temb=time)
            for i, (mine, theirs) in enumerate(zip(own, added, strict=True)):
                residual = i < len(other.resnets)
                skips.append(mine + (next(zero_convs)(theirs) if residual else theirs))
        x = unet.mid_block(x, time) + self.control_copy_unet_mid_zero_conv(copy.mid_block(steered, time))
        for block in unet.up_blocks:
            count = len(block.resnets)
            x = block(x, tuple(skips[-count:]), time)
            del skips[-count:]
        return unet.conv_out(unet.conv_act(unet.conv_norm_out(x)))


def _halving(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(c_out, c_out, 3, padding=1)
    )
