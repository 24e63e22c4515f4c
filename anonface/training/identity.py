"""Distillation of the identity encoder from two public recognizers.

The student's trunks have the teachers' architectures and start from their weights. They learn to give the teachers'
embedding of a clean face for the same face after jitter, relighting, blur, compression or partial occlusion. Teacher A
is a MobileFaceNet (192-d), teacher B a depthwise residual network (256-d). Neither is used in evaluations. A classifier
gives the labels for the directions of apparent sex and age in the codes; skin tone is measured in the pictures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.errors import WeightsError
from anonface.models.attribute_classifiers import SexAgeClassifier
from anonface.models.identity import DepthwiseResNet, IdentityEncoder, MobileFaceNet
from anonface.training.data import FaceBank, jitter, photograph
from anonface.training.loop import Objective
from anonface.weights.conversion import GraphFile


def start_from_teachers(encoder: IdentityEncoder, teacher_a: GraphFile, teacher_b: GraphFile) -> None:
    """Copy the teachers' weights into the trunks, layer by layer in order of execution."""
    _copy_trunk(encoder.trunk_a, teacher_a)
    _copy_trunk(encoder.trunk_b, teacher_b)
    arrays = teacher_b.arrays
    dense = arrays["dense/kernel"].reshape(4, 4, 128, -1).transpose(2, 0, 1, 3).reshape(2048, -1)  # HWC -> CHW
    encoder.trunk_b.dense.weight.data = torch.from_numpy((dense * arrays["batchnorm0/mul"]).T.copy())
    encoder.trunk_b.dense.bias.data = torch.from_numpy(arrays["batchnorm0/sub"].copy())


def _copy_trunk(trunk: MobileFaceNet | DepthwiseResNet, teacher: GraphFile) -> None:
    convolutions = [n for n in teacher.nodes if n.op == "conv2d"]
    slopes = [(i, teacher.arrays[i]) for n in teacher.nodes if n.op == "mul" for i in n.inputs if i in teacher.arrays]
    slopes = [(name, a) for name, a in slopes if a.ndim == 1 and a.size > 1 and "batchnorm" not in name]
    own = [m for m in trunk.modules() if isinstance(m, nn.Conv2d)]
    activations = [m for m in trunk.modules() if isinstance(m, nn.PReLU)]
    if len(own) != len(convolutions) or len(activations) != len(slopes):
        raise WeightsError("the teacher's layers do not match the trunk's")
    for module, node in zip(own, convolutions, strict=True):
        module.weight.data = torch.from_numpy(teacher.arrays[node.inputs[1]].copy()).reshape(module.weight.shape)
        if module.bias is not None:
            module.bias.data = torch.from_numpy(teacher.arrays[node.inputs[2]].copy())
    # teacher A writes PReLU as relu(x) + s (x - |x|), which is 2 s x below zero; teacher B as max + s min
    factor = 2.0 if any(n.op == "abs" for n in teacher.nodes) else 1.0
    for activation, (_, slope) in zip(activations, slopes, strict=True):
        activation.weight.data = torch.from_numpy(factor * slope)


class IdentityObjective(Objective):
    """1 - cosine to each teacher's embedding of the clean face, averaged over both trunks.

    The shipped weights are an average of the initial and the trained ones (weight-space ensembling, Wortsman et al.
    2022). They are more robust to degradations than the initial weights and nearly as accurate on real faces, which the
    trained weights alone are not.
    """

    KEEP = 0.7  # weight of the initial weights

    def __init__(self, encoder: IdentityEncoder, bank: FaceBank, apparent: SexAgeClassifier, batch: int = 16) -> None:
        self.encoder, self.bank, self.batch = encoder, bank, batch
        self.start = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
        with torch.inference_mode():
            parts = [encoder.parts(bank.faces(slice(i, i + 32))) for i in range(0, len(bank), 32)]
        self.target_a, self.target_b = (torch.cat(list(p)).clone() for p in zip(*parts, strict=True))
        looks = (bank.faces(slice(i, i + 32)) for i in range(0, len(bank), 32))
        labels = torch.cat([torch.cat([apparent(faces), skin_tone(faces)], dim=1) for faces in looks])
        encoder.axes.copy_(code_axes(encoder.fuse(self.target_a, self.target_b) @ encoder.axes, labels))

    def modules(self) -> dict[str, nn.Module]:
        return {"identity": self.encoder}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        index, faces, _ = self.bank.draw(self.batch, rng)
        a, b = self.encoder.parts(jitter(photograph(faces, rng), rng))
        far_a = 1 - F.cosine_similarity(a, self.target_a[index])
        far_b = 1 - F.cosine_similarity(b, self.target_b[index])
        return {"trunk_a": far_a.mean(), "trunk_b": far_b.mean()}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        end = self.encoder.state_dict()
        mixed = {name: self.KEEP * self.start[name] + (1 - self.KEEP) * end[name] for name in end if name != "axes"}
        return {"identity": mixed | {"axes": end["axes"]}}


def skin_tone(faces: Tensor) -> Tensor:
    """Lightness of the skin in FFHQ-aligned faces [B, 3, R, R] in [-1, 1]: CIE L* in 0..100, [B, 1].

    It is the median over both cheeks and the forehead. It depends on the light too, but codes hardly do.
    """
    side = faces.shape[-1]
    reach = round(0.035 * side)
    spots = ((round(x * side), round(y * side)) for x, y in ((0.37, 0.60), (0.63, 0.60), (0.50, 0.36)))
    skin = [faces[:, :, y - reach : y + reach, x - reach : x + reach].flatten(2) for x, y in spots]
    srgb = (torch.cat(skin, dim=2) + 1) / 2
    linear = torch.where(srgb > 0.04045, ((srgb + 0.055) / 1.055) ** 2.4, srgb / 12.92)
    y = (linear * faces.new_tensor([0.2126, 0.7152, 0.0722])[:, None]).sum(1)
    lightness = torch.where(y > 0.008856, 116 * y.clamp_min(0.008856) ** (1 / 3) - 16, 903.3 * y)
    return lightness.median(dim=1, keepdim=True).values


def code_axes(joined: Tensor, labels: Tensor) -> Tensor:
    """The encoder's isometry: first the axes of the labels, then principal axes, largest first.

    Each label has two axes: the direction that predicts it best (ridge regression), and the direction of its covariance
    with the codes. If the coordinates along both are kept, the label can still be read, whatever the others are.

    Args:
        joined: the trunks' embeddings side by side, [N, 448], of unit length.
        labels: [N, L].

    Returns:
        Orthonormal rows, [448, 448]; the first 2 L are those of the labels.
    """
    centred = (joined - joined.mean(0)).double()
    spread = centred.T @ centred / len(centred)
    apart = centred.T @ (labels - labels.mean(0)).double() / len(centred)
    predict = torch.linalg.solve(spread + 1e-3 * torch.eye(len(spread), dtype=spread.dtype), apart)
    axes, lengths = torch.linalg.qr(torch.stack([predict, apart], dim=2).flatten(1))
    kept = (axes * lengths.diagonal().sign()).T  # the coordinate on the first axis grows with the label
    rest = joined.double() @ (torch.eye(len(spread), dtype=spread.dtype) - kept.T @ kept)
    principal = torch.linalg.svd(rest, full_matrices=True)[2][: len(spread) - len(kept)]
    return torch.cat([kept, principal]).float()
