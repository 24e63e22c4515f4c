"""The face parser of the sign-flip diffusion authors: BiSeNet on a ResNet-34, in the layout of yakhyo/face-parsing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import torchvision_adapter

CLASSES = 19
# Skin, brows, eyes, glasses, ears, nose, mouth, lips and neck, of CelebAMask-HQ's classes in this network's order.
FACE = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14)
INPUT = 512  # px
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ConvBlock(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class AttentionRefinement(nn.Module):
    """A convolution with channel attention: weights are a function of the channels' means over the picture."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv_block = ConvBlock(c_in, c_out)
        self.attention = nn.Sequential(nn.Conv2d(c_out, c_out, 1, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_block(x)
        return x * torch.sigmoid(self.attention(x.mean((2, 3), keepdim=True)))


class ContextPath(nn.Module):
    """Features of the backbone at stride 8, and those of strides 16 and 32 upsampled to 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torchvision_adapter.load("torchvision.models").resnet34(weights=None)
        self.arm16 = AttentionRefinement(256, 128)
        self.arm32 = AttentionRefinement(512, 128)
        self.conv_head32 = ConvBlock(128, 128)
        self.conv_head16 = ConvBlock(128, 128)
        self.conv_avg = ConvBlock(512, 128, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        net = self.backbone
        x = net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x)))))
        stride8 = net.layer2(x)
        stride16 = net.layer3(stride8)
        stride32 = net.layer4(stride16)
        mean = self.conv_avg(stride32.mean((2, 3), keepdim=True))
        up32 = F.interpolate(self.arm32(stride32) + mean, stride16.shape[2:])
        up32 = self.conv_head32(up32)
        up16 = F.interpolate(self.arm16(stride16) + up32, stride8.shape[2:])
        return stride8, self.conv_head16(up16), up32


class FeatureFusion(nn.Module):
    """Fuse spatial and context features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_block = ConvBlock(channels, channels, 1)
        self.conv1 = nn.Conv2d(channels, channels // 4, 1, bias=False)
        self.conv2 = nn.Conv2d(channels // 4, channels, 1, bias=False)

    def forward(self, spatial: Tensor, context: Tensor) -> Tensor:
        x = self.conv_block(torch.cat([spatial, context], 1))
        weight = self.conv2(F.relu(self.conv1(x.mean((2, 3), keepdim=True))))
        return x + x * torch.sigmoid(weight)


class Output(nn.Module):
    """Features -> class logits."""

    def __init__(self, c_in: int, width: int) -> None:
        super().__init__()
        self.conv_block = ConvBlock(c_in, width)
        self.conv = nn.Conv2d(width, CLASSES, 1, bias=False)

    def forward(self, x: Tensor, size: torch.Size) -> Tensor:
        return F.interpolate(self.conv(self.conv_block(x)), size, mode="bilinear", align_corners=True)


class BiSeNetResNet34(nn.Module):
    """Normalised pictures [B, 3, H, W] -> class logits [B, 19, H, W]: the result and two auxiliary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fpn = ContextPath()
        self.ffm = FeatureFusion(256)
        self.conv_out = Output(256, 256)
        self.conv_out16 = Output(128, 64)
        self.conv_out32 = Output(128, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spatial, context8, context16 = self.fpn(x)
        fused = self.ffm(spatial, context8)
        size = x.shape[2:]
        return self.conv_out(fused, size), self.conv_out16(context8, size), self.conv_out32(context16, size)


def prepare(images: Tensor) -> Tensor:
    """Pictures [B, 3, H, W] in [0, 1] -> the network's input [B, 3, 512, 512]."""
    resized = F.interpolate(images, (INPUT, INPUT), mode="bilinear", antialias=True)
    return (resized - images.new_tensor(MEAN).view(3, 1, 1)) / images.new_tensor(DEVIATION).view(3, 1, 1)


def face_classes(logits: Tensor) -> Tensor:
    """Class logits [B, 19, H, W] -> 1 where the likeliest class is face, else 0, [B, 1, H, W]."""
    classes = logits.argmax(1, keepdim=True)
    return torch.isin(classes, torch.tensor(FACE, device=classes.device)).to(logits.dtype)


def coverage(mask: Tensor, side: int, antialias: bool = True) -> Tensor:
    """A binary mask [B, 1, H, W] at another size, with values between 0 and 1 at its border.

    The authors take every cell above 0 as face. With ``antialias``, today's default of the library that they use, this
    widens the mask by up to the factor of the reduction. Without, the default of their time, the mask hardly grows.
    """
    return F.interpolate(mask, (side, side), mode="bilinear", antialias=antialias)
