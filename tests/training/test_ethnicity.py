"""The reading of apparent ethnicity from codes."""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from anonface import weights
from anonface.models.ethnicity import Ethnicity
from anonface.models.identity import IdentityEncoder
from anonface.training.ethnicity import asian_odds, fit_ethnicity
from anonface.training.run import Request, train_command

CODES = F.normalize(torch.randn(900, 448, generator=torch.Generator().manual_seed(2)), dim=1)
TRUE = F.normalize(torch.randn(448, generator=torch.Generator().manual_seed(3)), dim=0)


def said(noise: float) -> torch.Tensor:
    """Odds of a classifier with errors of this standard deviation."""
    return 9 * CODES @ TRUE + noise * torch.randn(len(CODES), generator=torch.Generator().manual_seed(4))


def test_the_reading_follows_the_classifier_without_its_errors():
    ethnicity, told = fit_ethnicity(CODES, said(0.3))
    read = ethnicity(CODES)
    assert abs(float(read.mean())) < 1e-4 and abs(float(read.std()) - 1) < 1e-4
    assert 0.6 < told < 1 and float(F.cosine_similarity(ethnicity.direction, TRUE, dim=0)) > 0.75


def test_odds_unrelated_to_codes_are_not_read():
    noise = torch.randn(len(CODES), generator=torch.Generator().manual_seed(5))
    assert abs(fit_ethnicity(CODES, noise)[1]) < 0.2


def test_odds_are_those_of_one_class():
    classes = torch.tensor([[0.9, 0.02, 0.04, 0.02, 0.02], [0.02, 0.02, 0.9, 0.04, 0.02], [0.2, 0.2, 0.2, 0.2, 0.2]])
    white, asian, anybody = asian_odds(classes).tolist()
    assert white < asian and asian > 2 and abs(anybody) < 1e-6
    assert asian_odds(torch.tensor([[1.0, 0, 0, 0, 0]])).isfinite().all()


def test_the_command_fits_it_to_drawn_faces_and_writes_it(tmp_path):
    (said,) = train_command("ethnicity", Request(tmp_path, faces=12))
    assert list(said) == ["correlation"]
    ethnicity, file = Ethnicity(), tmp_path / "ethnicity/ethnicity.safetensors"
    weights.fit(ethnicity, weights.load_checkpoint(file), source=str(file))
    images = load_file(tmp_path / "faces.safetensors")["images"]
    encoder = IdentityEncoder()
    weights.load(encoder, "identity")
    with torch.inference_mode():
        read = ethnicity(encoder.eval()(images.float() / 127.5 - 1))
    assert len(read) == 12 and abs(float(read.mean())) < 0.01 and abs(float(read.std()) - 1) < 0.01
