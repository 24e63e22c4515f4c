"""What eyes see of a face."""

import pytest
import torch

from anonface.backends.generator import load_generator, load_mapping
from anonface.faces.align import EYES
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, load_analysis_networks
from anonface.models.identity import CONDITIONS


def test_each_network_looks_once_and_only_when_asked():
    looks: list[str] = []

    def looking(name: str, seen: torch.Tensor):
        def look(faces, *rest):
            looks.append(name)
            return seen

        return look

    mesh = torch.rand(1, 468 * 3, generator=torch.Generator().manual_seed(1)) * 192
    code, known, logits = torch.rand(1, 448), torch.rand(1, 512), torch.rand(1, 4, 8, 8)
    code[0, 0], seems = -0.16, torch.tensor([[2.0, 30.0]])
    eyes = AnalysisNetworks(
        encoder=looking("encoder", code),
        landmarks=looking("landmarks", mesh),
        parser=looking("parser", logits),
        recognizer=looking("recognizer", known),
        apparent=looking("apparent", seems),
        ethnicity=looking("ethnicity", seems),
    )
    analysis = FaceAnalysis(torch.zeros(1, 3, 64, 64), eyes)
    assert looks == []
    assert analysis.mesh.shape == (1, 468, 2) and analysis.frames.shape == (1, 2, 3) and looks == ["landmarks"]
    assert analysis.code is code and analysis.known is known and analysis.parsed is logits
    # the classifier says 2 nats for a man, the code 4 for a woman: each counts half
    assert torch.allclose(analysis.seems, torch.tensor([-1.0, 30.0])) and analysis.seems is analysis.seems
    assert analysis.code is code and analysis.mesh is analysis.mesh
    assert looks == ["landmarks", "encoder", "recognizer", "parser", "apparent"]


def test_a_code_says_the_sex_that_the_classifier_does():
    eyes, z = load_analysis_networks(), torch.randn(12, 512, generator=torch.Generator().manual_seed(8))
    with torch.inference_mode():
        faces = load_generator().synthesize(load_mapping()(z)[:, None], 256).clamp(-1, 1)
        said, code = eyes.apparent(faces)[:, 0], eyes.encoder(faces)[:, CONDITIONS["sex"].start]
    assert float(torch.corrcoef(torch.stack([said, code]))[0, 1]) > 0.6


def test_what_is_seen_of_a_photo_holds_no_gradient():
    weight = torch.ones(1, requires_grad=True)
    look = lambda faces, *rest: weight * torch.ones(1, 468 * 3)  # noqa: E731
    seem = lambda faces: weight * torch.ones(1, 2)  # noqa: E731
    eyes = AnalysisNetworks(encoder=look, landmarks=look, parser=look, recognizer=look, apparent=seem, ethnicity=look)
    analysis = FaceAnalysis(torch.zeros(1, 3, 64, 64), eyes)
    assert not any(getattr(analysis, name).requires_grad for name in ("mesh", "code", "parsed", "seems"))


def test_eyes_are_hidden_where_the_mask_leaves_them_out():
    sides = {"left": EYES[:16], "right": EYES[16:]}
    mesh = torch.full((1, 468, 3), 0.5 * 192)
    mesh[:, sides["left"], 0], mesh[:, sides["right"], 0] = 0.2 * 192, 0.8 * 192
    eyes = AnalysisNetworks(
        **dict.fromkeys(AnalysisNetworks.__dataclass_fields__, lambda faces, *rest: mesh.flatten(1))
    )
    analysis, half = FaceAnalysis(torch.zeros(1, 3, 64, 64), eyes), (torch.arange(64) < 32).float().expand(1, 1, 64, 64)
    hidden = [float(analysis.eyes_hidden(mask)) for mask in (torch.ones(1, 1, 64, 64), half, 0 * half)]
    assert hidden == pytest.approx([0.0, 0.5, 1.0], abs=1e-5)
