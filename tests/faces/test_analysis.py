"""What eyes see of a face."""

import torch

from anonface.backends.generator import load_generator, load_mapping
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
    code = torch.rand(1, 448)
    code[0, 0], seems = -0.16, torch.tensor([[2.0, 30.0]])
    eyes = AnalysisNetworks(
        encoder=looking("encoder", code),
        landmarks=looking("landmarks", mesh),
        apparent=looking("apparent", seems),
    )
    analysis = FaceAnalysis(torch.zeros(1, 3, 64, 64), eyes)
    assert looks == []
    assert analysis.mesh.shape == (1, 468, 2) and looks == ["landmarks"]
    assert analysis.code is code
    # the classifier says 2 nats for a man, the code 4 for a woman: each counts half
    assert torch.allclose(analysis.seems, torch.tensor([-1.0, 30.0])) and analysis.seems is analysis.seems
    assert analysis.code is code and analysis.mesh is analysis.mesh
    assert looks == ["landmarks", "encoder", "apparent"]


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
    eyes = AnalysisNetworks(encoder=look, landmarks=look, apparent=seem)
    analysis = FaceAnalysis(torch.zeros(1, 3, 64, 64), eyes)
    assert not any(getattr(analysis, name).requires_grad for name in ("mesh", "code", "seems"))
