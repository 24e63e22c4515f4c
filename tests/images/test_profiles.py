"""Profiles: colours to the bit, and nothing that says who made them; those that are made say what they are to say."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from anonface.images import profiles

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
CANARY = b"CANARY-4f1c"


def fixed(*values: float) -> bytes:
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)


def profile(major: int = 2, **more: bytes) -> bytes:
    """Wide primaries, gamma 1.8 for red and a table for the others; markers wherever a profile has room for them."""
    ramp = struct.pack(">256H", *(round(65535 * (n / 255) ** 2.4) for n in range(256)))
    tags = {
        b"desc": struct.pack(">4s4xI", b"desc", len(CANARY) + 1) + CANARY + bytes(79),
        b"cprt": b"text\0\0\0\0" + CANARY + b"\0",
        b"wtpt": b"XYZ \0\0\0\0" + fixed(0.9642, 1, 0.8249) + CANARY,
        b"rXYZ": b"XYZ " + CANARY[:4] + fixed(0.61, 0.311, 0.019),
        b"gXYZ": b"XYZ \0\0\0\0" + fixed(0.205, 0.626, 0.061),
        b"bXYZ": b"XYZ \0\0\0\0" + fixed(0.149, 0.063, 0.745),
        b"rTRC": b"curv\0\0\0\0" + struct.pack(">IH", 1, 0x01CD) + CANARY,
        b"gTRC": b"curv\0\0\0\0" + struct.pack(">I", 256) + ramp + CANARY,
        b"bTRC": b"para\0\0\0\0" + struct.pack(">H", 0) + CANARY[:2] + fixed(2.2) + CANARY,
        b"priv": b"text\0\0\0\0" + CANARY,
        **{name.encode(): element for name, element in more.items()},
    }
    table, body = struct.pack(">I", len(tags)), CANARY + bytes(-len(CANARY) % 4)
    for name, element in tags.items():
        table += struct.pack(">4sII", name, 132 + 12 * len(tags) + len(body), len(element))
        body += element + bytes(-len(element) % 4)
    head = struct.pack(">I4sB3x4s8s", 128 + len(table) + len(body), CANARY[:4], major, b"mntr", b"RGB XYZ ")
    head += struct.pack(">6H", 2024, 5, 17, 12, 34, 56) + b"acsp" + b"APPL" + bytes(4) + CANARY[:8] + bytes(12)
    return (head + fixed(0.9642, 1, 0.8249) + CANARY[:4]).ljust(128, b"\0") + table + body


def in_srgb(icc: bytes) -> np.ndarray:
    """A cube of colours, seen through a profile."""
    levels = np.linspace(0, 255, 24).astype(np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(24, -1, 3)
    source = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    return np.asarray(ImageCms.profileToProfile(Image.fromarray(cube), source, ImageCms.createProfile("sRGB")))


@pytest.mark.parametrize("icc", [SRGB, profile(2), profile(4)], ids=["sRGB", "version 2", "version 4"])
def test_colours_stay_and_words_go(icc: bytes) -> None:
    kept = profiles.colour_profile(icc)
    assert kept is not None and len(kept) < len(icc)
    assert np.array_equal(in_srgb(kept), in_srgb(icc))
    assert profiles.colour_profile(kept) == kept
    assert b"CANARY" not in kept and b"CANA" not in kept
    assert ImageCms.ImageCmsProfile(io.BytesIO(kept)).profile.profile_description == "RGB"


def test_the_profiles_of_these_tests_differ() -> None:
    assert (in_srgb(SRGB) != in_srgb(profile())).any()
    assert profile().count(CANARY) == 8


@pytest.mark.parametrize(
    "icc",
    [
        b"",
        b"no profile" * 30,
        SRGB[:300],
        SRGB[:128],
        SRGB.replace(b"RGB XYZ ", b"GRAYXYZ "),
        SRGB.replace(b"RGB XYZ ", b"RGB Lab "),
        SRGB.replace(b"para", b"what"),
        profile(A2B0=b"mft1"),
        profile(rTRC=b"curv\0\0\0\0" + struct.pack(">I", 2**31)),
        profile(rTRC=b"para\0\0\0\0" + struct.pack(">HH", 9, 0)),
        profile(priv=bytes(profiles.MAX_ICC)),
    ],
)
def test_other_profiles_are_not_kept(icc: bytes) -> None:
    assert profiles.colour_profile(icc) is None


@given(st.binary(max_size=40), st.integers(0, len(profile()) - 1))
def test_any_bytes_are_a_profile_or_not(data: bytes, at: int) -> None:
    icc = profile()
    kept = profiles.colour_profile(icc[:at] + data + icc[at + len(data) :])
    assert kept is None or len(kept) < len(icc)
