"""Where the photo's own skin stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anonface.backends.generator import load_generator, load_mapping
from anonface.faces.align import BROWS, EYES, LIPS
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, load_analysis_networks, mesh_in_crop
from anonface.faces.colour_transfer import match_tones
from anonface.faces.occlusion import keep_photo_skin, over_brows, skin_around, skin_kept, skin_of, strands
from anonface.models.face_parser import CLASSES


@pytest.fixture(scope="module")
def eyes() -> AnalysisNetworks:
    return load_analysis_networks()


@pytest.fixture(scope="module")
def faces() -> torch.Tensor:
    """Two faces of nobody."""
    z = torch.randn(2, 512, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        return load_generator().synthesize(load_mapping()(z)[:, None], 256).clamp(-1, 1).clone()


def test_skin_is_what_has_no_feature(eyes, faces):
    mesh = mesh_in_crop(eyes.landmarks, faces[:1])
    skin = skin_of(mesh, 256)
    points = (mesh[0] * 256).long()
    for rows in (EYES, LIPS):
        across, down = points[rows].T
        assert not skin[0, 0, down, across].any()
    cheek = (points[50] + points[280]) // 2  # below the nose's bridge lies the nose
    assert skin[0, 0, points[50][1], points[50][0]] == 1 and 0.5 < float(skin.mean()) < 0.95
    assert skin[0, :, cheek[1], cheek[0]].tolist() == [0, 1]  # which gives way to glasses
    assert bool((skin[0, 1] >= skin[0, 0]).all())


def test_skin_stays_where_a_new_face_is_none_and_hardly_elsewhere():
    odds, skin, mask = torch.full((1, 64, 64), 9.0), torch.ones(1, 2, 128, 128), torch.zeros(1, 1, 128, 128)
    bare = torch.zeros_like(odds)
    odds[:, :, 50:] = -9
    skin[:, :, :40] = 0
    mask[:, :, :, 20:110] = 1
    kept = skin_kept(odds, bare, skin, mask)
    assert kept[0, 0, 80, 105] > 0.99 and kept[0, 0, 80, 60] == 0 and kept[0, 0, 20, 105] < 0.01
    assert kept[0, 0, 80, 127] == 0  # outside the mask nothing is asked
    assert torch.equal(skin_kept(torch.full((1, 64, 64), 9.0), bare, skin, mask), torch.zeros_like(mask))


def test_a_nose_gives_way_to_glasses_and_to_nothing_else():
    unlike, bare, mask = torch.full((1, 64, 64), -9.0), torch.zeros(1, 64, 64), torch.ones(1, 1, 128, 128)
    skin, rims = torch.zeros(1, 2, 128, 128), torch.zeros(1, 64, 64)
    skin[:, 1, 40:80] = 1  # a nose
    rims[:, 20:40, 30:40] = 9.0
    assert not skin_kept(unlike, bare, skin, mask).any()
    kept = skin_kept(unlike, rims, skin, mask)
    assert kept[0, 0, 60, 70] > 0.99 and not kept[0, 0, :30].any() and kept[0, 0, 60, 20] == 0
    assert not skin_kept(-unlike, rims, skin, mask).any()  # what shows what the photo does stays, glasses or not


def test_hair_between_hair_above_and_below_hangs_over_a_brow_and_no_other_does():
    hair, brows, mask = torch.full((1, 64, 64), -9.0), torch.zeros(1, 1, 128, 128), torch.ones(1, 1, 128, 128)
    brows[..., 40:52, 20:110] = 1
    hair[:, 10:20, 45:55], hair[:, 26:40, 45:55] = 9.0, 9.0  # the parser took what is between for a brow
    hair[:, 10:20, 20:30] = 9.0  # this fringe ends above
    hangs = over_brows(hair, brows, mask)
    assert hangs[0, 0, 45, 100] == 1 and not hangs[0, 0, 46:, 30:80].any() and not hangs[0, 0, :40].any()
    assert not over_brows(-hair.abs(), brows, mask).any() and not over_brows(hair, brows, 0 * mask).any()
    seen = torch.full((1, 64, 64), 9.0)
    kept = skin_kept(seen, 0 * seen, torch.zeros(1, 2, 128, 128), mask, hangs)
    assert kept[0, 0, 45, 100] > 0.99 and not kept[0, 0, 51:, :70].any()


def test_a_thin_dark_line_on_a_forehead_gives_way_and_none_of_the_photos_own_or_below_does(eyes, faces):
    face, mask = faces[:1].clamp_min(-0.2), torch.ones(1, 1, 256, 256)
    analysis = FaceAnalysis(face, eyes)
    top = int(analysis.mesh[0, BROWS, 1].min() * 256)
    middle = int(analysis.mesh[0, 151, 0] * 256)  # of the forehead
    dark = face.clone()
    dark[..., top - 30 : top - 4, middle : middle + 3] = -0.9
    dark[..., top + 60 : top + 80, middle : middle + 3] = -0.9
    plain = torch.zeros(1, len(CLASSES), 128, 128)
    dark[..., :9, middle : middle + 3] = -0.9  # in the photo's hair, which is not looked at
    assert not strands(dark, plain, analysis)[..., :15, :].any()
    found = strands(dark, plain, analysis)
    assert found[0, 0, top - 20, middle + 1] == 1 and not found[..., top:, :].any()
    assert not found[0, 0, top - 28 : top - 6, middle + 8 : middle + 20].any()
    assert not strands(face, plain, analysis).any() and not strands(dark, plain, FaceAnalysis(dark, eyes)).any()
    plain[:, CLASSES.index("brows")] = 9  # nor is a brow that sits higher than the photo's
    assert not strands(dark, plain, analysis).any()
    healed = keep_photo_skin(dark, face, mask, analysis)
    line = np.s_[:, :, top - 24 : top - 10, middle + 1]
    assert float((healed[line] - face[line]).abs().max()) < 0.05 < float((dark[line] - face[line]).abs().min())


def test_brows_are_painted_over_in_the_colour_of_the_skin_about_them(eyes, faces):
    analysis = FaceAnalysis(faces[:1], eyes)
    bare, brows = skin_around(analysis)
    points = (analysis.mesh[0] * 256).long()
    middle, skin = points[BROWS].float().mean(0).long(), faces[0, :, points[151][1], points[151][0]]  # the forehead
    for rows in (BROWS[:10], BROWS[10:]):
        across, down = points[rows].float().mean(0).long()
        assert brows[0, 0, down, across] == 1
        assert (bare[0, :, down, across] - skin).abs().max() < 0.25 < (faces[0, :, down, across] - skin).abs().max()
    assert brows[0, 0, middle[1], middle[0]] == 0 and 0.005 < float(brows.mean()) < 0.1
    assert not brows[0, 0, points[EYES].T[1], points[EYES].T[0]].any()


def test_a_face_that_is_all_face_is_only_toned_and_a_strand_gives_way(eyes, faces):
    face, render = faces[:1], faces[1:]
    mask = torch.zeros(1, 1, 256, 256)
    mask[:, :, 80:220, 60:196] = 1

    def parse(dark):  # what is dark is hair
        logits = torch.full((len(dark), len(CLASSES), *dark.shape[-2:]), -9.0)
        logits[:, CLASSES.index("skin")] = 0
        logits[:, CLASSES.index("brows")] = -1  # and all may be a brow, where a thin line is none
        logits[:, CLASSES.index("hair")] = torch.where(dark.amax(1) < -0.85, 9.0, -9.0)
        return logits

    naive = replace(eyes, parser=parse)
    clean = keep_photo_skin(
        render.clamp_min(-0.5), face.clamp_min(-0.5), mask, FaceAnalysis(face.clamp_min(-0.5), naive)
    )
    assert torch.allclose(clean, match_tones(render.clamp_min(-0.5), face.clamp_min(-0.5), mask))
    strand, analysis = render.clone(), FaceAnalysis(face, naive)
    strand[:, :, 130:200, 66:74] = -1.0
    healed = keep_photo_skin(strand, face, mask, analysis)
    where = np.s_[:, :, 140:190, 68:72]
    assert float((healed[where] - face[where]).abs().max()) < 0.02
    dark = render.clone()
    dark[:, :, 116:124] = -1.2  # across the eyes
    hidden, shown = (keep_photo_skin(dark, face, mask, analysis, features) for features in (False, True))
    across = np.s_[:, :, 119:121, 90:170]
    assert (
        float((shown[across] - face[across]).abs().max()) < 0.02 < float((hidden[across] - face[across]).abs().mean())
    )
    small = keep_photo_skin(*(torch.nn.functional.interpolate(x, (128, 128)) for x in (strand, face, mask)), analysis)
    assert small.shape == (1, 3, 128, 128)
