"""Figures that papers report of their methods, as printed there, and how their protocols differ from this one's.

Nothing here was measured by this program. Each figure names the table it stands in; "method, by X" was measured by the
authors of X.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper and what makes its figures other than this evaluation's.

    Attributes:
        title: as it was published.
        differs: of its protocol, one sentence or two.
    """

    title: str
    differs: str


@dataclass(frozen=True)
class Published:
    """One row: figures of one table.

    Attributes:
        method: what was measured.
        what: the measure.
        hidden, back: as printed, of the anonymized faces and of those recovered with the right key; "" where there is
            none.
        on: the photos, and how many where the paper says so.
        judge: the recognizer or detector, with its threshold.
        paper: a name in ``PAPERS``.
        table: where it stands.
    """

    method: str
    what: str
    hidden: str
    back: str
    on: str
    judge: str
    paper: str
    table: str


COMMON = (
    "Square crops (256 px, where a paper says it) that hold one aligned face; no paper says that the "
    "anonymized picture went through an 8-bit file before it was recovered; pictures are compared whole, with a "
    "background that was never changed, where this evaluation compares the face alone; recognizers are others, at "
    "thresholds of their own."
)

PAPERS = {
    "iFADIT": Paper(
        "iFADIT: Invertible Face Anonymization via Disentangled Identity Transform (Pattern Recognition 2025)",
        "Cosines of embeddings, not matches. ArcFace was also its identity encoder in training. FFHQ* are 70,000 faces "
        "drawn by StyleGAN, of which the tenth that training left out is tested, so that its generator can draw each "
        "of them; that table 3 is of FFHQ* is said of the figure beside it. Table 5 prints 0.954 for the cosine that "
        "table 3 gives as 0.852.",
    ),
    "SignFlip": Paper(
        "Secure and reversible face anonymization with diffusion models",
        "Its table 2 is the nearest to `other photos of the person`: one photo of a pair is anonymized, the other is "
        "the gallery, at the threshold of 0.1 % false matches among the untouched ones, of which 99.06 % match. It "
        "runs the other methods itself, with their published weights; G2Face hides the original in the "
        "picture and needs no key.",
    ),
    "DBAF": Paper(
        "Disentangle Before Anonymize: A Two-stage Framework for Attribute-preserved and Occlusion-robust "
        "De-identification",
        "The nearest to `matched to the original`: distances below a threshold against the very photo. 200 photos a "
        "method, of people of whom there is one photo each; ArcFace was in its training loss. Its 0.012 is no whole "
        "number of 200 photos. Table II gives no SSIM.",
    ),
    "HFORD": Paper(
        "HFORD: High-Fidelity and Occlusion-Robust De-identification for Face Privacy Protection",
        "As DBAF's, on 200 photos. The paper prints the same PSNR and LPIPS, and the same FID, as DBAF's.",
    ),
}

_COSINE, _MATCHED, _TAR = "cosine to the original", "matched to the original", "other photo of the person matched"
_FOUND, _SHIFT = "face found again", "shift of 68 landmarks, px"
_ALL, _NO_SSIM = "PSNR, SSIM, LPIPS", "PSNR, LPIPS"
_LFW, _HQ, _HQ200, _UNSAID = "LFW, 1,600 pairs", "CelebA-HQ, 30,000", "CelebA-HQ, 200", "not said"
_R50, _FAR = "ArcFace R50 (MS1MV3)", "ArcFace R50 (MS1MV3), FAR 0.1 %"
_FACENET, _ARCFACE = "FaceNet (CASIA), 1.1", "ArcFace, 0.8"
_DETECTORS, _PIXELS = "MTCNN, dlib", "pixels"

FIGURES = (
    Published("iFADIT", _COSINE, "0.061", "", "CelebA-HQ", "ArcFace", "iFADIT", "table 1"),
    Published("iFADIT", _COSINE, "0.020", "", "LFW", "ArcFace", "iFADIT", "table 1"),
    Published("iFADIT", _COSINE, "", "0.852", "FFHQ*", "ArcFace", "iFADIT", "table 3"),
    Published("iFADIT", _ALL, "", "35.20 dB, 0.945, 0.041", "FFHQ*", _PIXELS, "iFADIT", "table 3"),
    Published("iFADIT", _FOUND, "1.000, 0.995", "", "CelebA-HQ", _DETECTORS, "iFADIT", "table 2"),
    Published("iFADIT", _SHIFT, "1.219, 0.986", "", "CelebA-HQ", _DETECTORS, "iFADIT", "table 2"),
    Published("SignFlip", _COSINE, "0.029", "0.692", _HQ, _R50, "SignFlip", "table 1"),
    Published("iFADIT, by SignFlip", _COSINE, "0.120", "0.119", _HQ, _R50, "SignFlip", "table 1"),
    Published("RiDDLE, by SignFlip", _COSINE, "0.042", "0.076", _HQ, _R50, "SignFlip", "table 1"),
    Published("G2Face, without a key, by SignFlip", _COSINE, "0.037", "0.680", _HQ, _R50, "SignFlip", "table 1"),
    Published("SignFlip", _TAR, "0.559 %", "70.531 %", _LFW, _FAR, "SignFlip", "table 2"),
    Published("iFADIT, by SignFlip", _TAR, "1.711 %", "1.047 %", _LFW, _FAR, "SignFlip", "table 2"),
    Published("RiDDLE, by SignFlip", _TAR, "0.628 %", "0.489 %", _LFW, _FAR, "SignFlip", "table 2"),
    Published("G2Face, without a key, by SignFlip", _TAR, "0.628 %", "76.257 %", _LFW, _FAR, "SignFlip", "table 2"),
    Published("DBAF", _MATCHED, "0.012", "1", _HQ200, _FACENET, "DBAF", "table I"),
    Published("DBAF", _MATCHED, "0", "1", _HQ200, _ARCFACE, "DBAF", "table I"),
    Published("DBAF", _NO_SSIM, "24.978 dB, 0.016", "29.535 dB, 0.027", "CelebA-HQ", _PIXELS, "DBAF", "table II"),
    Published("DBAF", _FOUND, "1, 1", "", _UNSAID, _DETECTORS, "DBAF", "table III"),
    Published("DBAF", _SHIFT, "2.540, 2.238", "", _UNSAID, _DETECTORS, "DBAF", "table III"),
    Published("DeepPrivacy2, by DBAF", _MATCHED, "0.042", "", _HQ200, _FACENET, "DBAF", "table I"),
    Published("DeepPrivacy2, by DBAF", _SHIFT, "6.021, 5.842", "", _UNSAID, _DETECTORS, "DBAF", "table III"),
    Published("HFORD", _MATCHED, "0.020", "1.000", _HQ200, _FACENET, "HFORD", "table I"),
    Published("HFORD", _MATCHED, "0.000", "1.000", _HQ200, _ARCFACE, "HFORD", "table I"),
    Published("HFORD", _ALL, "", "29.535 dB, 0.819, 0.027", _HQ200, _PIXELS, "HFORD", "table II"),
    Published("HFORD", _FOUND, "1.000, 1.000", "", _UNSAID, _DETECTORS, "HFORD", "table III"),
    Published("HFORD", _SHIFT, "2.540, 3.006", "", _UNSAID, _DETECTORS, "HFORD", "table III"),
)
