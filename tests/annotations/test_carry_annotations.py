"""Annotations of data sets, there and back through the command line, with an engine that costs nothing (fake.py)."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anonface.annotations import sources
from anonface.images import MAX_FILE_BYTES, read_photo

pytestmark = pytest.mark.usefixtures("room")

SIZE = (40, 32)
NAMED = ["train/a.jpg", "train/b.jpg", "val/a.jpg"]
BOXES = {"train/a.jpg": (3.25, 4, 10.1, 12), "train/b.jpg": (0, 0, 40, 32), "val/a.jpg": (7, 8, 9.333333333333334, 5)}


def photo(name, shade=120, size=SIZE, **more):
    """A photo of one colour, or a black one, in which the fake engine finds no face."""
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade // 2, shade // 3)).save(file, **more)


def write(name, content):
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def coco(boxes=None, prefix="", **image_fields):
    boxes = BOXES if boxes is None else boxes
    images, annotations = [], []
    for i, (name, box) in enumerate(boxes.items()):
        fields = {"width": SIZE[0], "height": SIZE[1], **image_fields}
        images.append({"id": i + 10, "file_name": prefix + name, "license": 3, **fields})
        shape = {"bbox": list(box), "area": box[2] * box[3], "segmentation": [[1.5, 2, 3, 4, 5, 6]], "iscrowd": 0}
        annotations.append({"id": i, "image_id": i + 10, "category_id": 1, "own": {"á": [1e-7, None]}, **shape})
    return {"info": {"year": 2026}, "images": images, "annotations": annotations, "categories": [{"id": 1}]}


def voc(name, box, folder="", size=SIZE, more=""):
    x, y, w, h = box
    corners = f"<xmin>{x}</xmin>\n<ymin>{y}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
    return (
        f"<annotation verified='yes'>\r\n\t<folder>{folder}</folder><filename>{name}</filename>\n"
        f"<path>/home/me/{name}</path><size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
        f"<!-- kept --><object><name>face &amp; co</name><own/><bndbox>{corners}</bndbox>{more}</object>\n"
        "</annotation>\n"
    )


def cvat(boxes=None, size=SIZE, shapes=""):
    images = [
        f'  <image id="{i}" name="{name}" width="{size[0]}" height="{size[1]}">\n    <box label="a" name=\'x\' '
        f'xtl="{x}" ytl="{y}" xbr="{x + w}" ybr="{y + h}" z_order="0"><attribute name="q">1 &lt; 2</attribute></box>'
        f"{shapes}\n  </image>\n"
        for i, (name, (x, y, w, h)) in enumerate((BOXES if boxes is None else boxes).items())
    ]
    head = (
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n  <meta><own>é</own></meta>\n'
    )
    return head + "".join(images) + "</annotations>\n"


def yolo(box):
    x, y, w, h = box
    return f"0 {(x + w / 2) / 40} {(y + h / 2) / 32} {w / 40:.17g} {h / 32}\n"


def make(kind):
    """A data set in a folder ``data``; returns its annotation files."""
    for name in NAMED:
        photo(f"data/images/{name}")
    if kind == "coco":
        write("data/annotations/instances.json", json.dumps(coco(), indent=2))
    elif kind == "cvat":
        write("data/annotations.xml", cvat())
    for name, box in BOXES.items():
        stem = name.removesuffix(".jpg")
        if kind == "voc":
            write(f"data/Annotations/{stem}.xml", voc(Path(name).name, box))
        elif kind == "yolo":
            write(f"data/labels/{stem}.txt", yolo(box))
    if kind == "yolo":
        write("data/data.yaml", "train: images/train\nval: images/val\nnames: [face]\n")
        write("data/classes.txt", "face\n")
        write("data/train.txt", "./images/train/a.jpg\r\n./images/train/b.jpg\r\n")
    return sorted(file for file in Path("data").rglob("*") if file.is_file() and file.suffix != ".jpg")


def boxes_in(top):
    """The corners of every box below a folder, by the relative path of the picture without suffixes and marks."""
    found = {}

    def add(name, corners):
        file = next(file for file in Path(top).rglob("*") if file.as_posix().endswith(name) and file.is_file())
        key = file.relative_to(top).as_posix().removeprefix("images/").split(".")[0]
        found[key] = corners

    for file in Path(top).rglob("*.json"):
        content = json.loads(file.read_text())
        names = {image["id"]: image["file_name"] for image in content["images"]}
        for entry in content["annotations"]:
            x, y, w, h = entry["bbox"]
            add(names[entry["image_id"]], (x, y, x + w, y + h))
    for file in Path(top).rglob("*.xml"):
        root = ET.parse(file).getroot()
        for image in root.iter("image"):
            add(image.get("name"), tuple(float(image.find("box").get(n)) for n in ("xtl", "ytl", "xbr", "ybr")))
        if root.tag == "annotation":
            box = root.find("object/bndbox")
            folder = file.parent.name
            corners = tuple(float(box.find(n).text) for n in ("xmin", "ymin", "xmax", "ymax"))
            add(f"{folder}/{root.find('filename').text}", corners)
    for file in Path(top).rglob("labels/*/*.txt"):
        pictures = list((Path(top) / "images" / file.parent.name).glob(f"{file.stem}.*"))
        assert len(pictures) == 1, file
        _, x, y, w, h = map(float, file.read_text().split())
        key = pictures[0].relative_to(Path(top) / "images").as_posix().split(".")[0]
        found[key] = ((x - w / 2) * 40, (y - h / 2) * 32, (x + w / 2) * 40, (y + h / 2) * 32)
    return found


def iou(one, other):
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return across * down / (sum(area) - across * down)


def run(anonface, command, key, *args):
    code, out, err = anonface(command, *args, "--key-file", key, "--json")
    assert "Traceback" not in err
    return code, json.loads(out), err


@pytest.mark.parametrize("kind", ["coco", "yolo", "voc", "cvat"])
def test_annotations_there_and_back(anonface, key, kind):
    """Boxes agree exactly, in the middle and at the end; under their first names files are as they were."""
    files = make(kind)
    first = boxes_in("data")
    assert set(first) == {"train/a", "train/b", "val/a"}
    code, result, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data")
    assert code == 0 and result["annotations"]["carried"] >= 3 and not result["annotations"]["failed_or_skipped"], err
    there = boxes_in("out")
    assert {name: iou(first[name], there[name]) for name in first} == dict.fromkeys(first, 1.0)
    named = "".join(file.read_text() for file in Path("out").rglob("*") if file.suffix in (".json", ".xml"))
    assert "a.jpg" not in named and (kind == "yolo" or "a.anon.jpg" in named)

    args = ["out", "-r", "-o", "back", "--annotations", "out", "--name", "{stem}{ext}"]
    code, result, err = run(anonface, "recover", key, *args)
    assert code == 0, err
    back = boxes_in("back")
    assert {name: iou(first[name], back[name]) for name in first} == dict.fromkeys(first, 1.0)
    for name in NAMED:
        assert Path("back/images", name).read_bytes() == Path("data/images", name).read_bytes()
    returned = sorted(file for file in Path("back").rglob("*") if file.is_file() and file.suffix != ".jpg")
    assert [file.relative_to("back") for file in returned] == [file.relative_to("data") for file in files]
    for before, after in zip(files, returned, strict=True):
        assert after.read_bytes() == before.read_bytes(), before


@pytest.mark.parametrize("kind", ["coco", "yolo", "voc", "cvat"])
def test_annotations_of_photos_that_failed_stay_behind(anonface, key, kind):
    make(kind)
    photo("data/images/train/b.jpg", shade=0)
    code, result, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data")
    lists = 2 if kind == "yolo" else 1  # train.txt names it too
    assert code == 3 and result["annotations"]["failed_or_skipped"] == lists
    assert f"entries left out ({lists} failed or skipped)" in err
    assert set(boxes_in("out")) == {"train/a", "val/a"}
    assert not any(re.search(r"\bb\.(anon|jpg)", file.read_text()) for file in Path("out").rglob("*.[jxt][smx][olt]*"))

    photo("data/images/train/b.jpg")  # corrected: the same command resumed writes them anew
    code, result, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data", "--resume")
    assert code == 0 and set(boxes_in("out")) == {"train/a", "train/b", "val/a"}, err


def test_files_of_others_are_not_replaced(anonface, key):
    make("coco")
    write("out/annotations/instances.json", json.dumps(coco({"else.png": (1, 1, 2, 2)})))
    before = Path("out/annotations/instances.json").read_bytes()
    for option in ([], ["--resume"], ["--skip-existing"]):
        code, _, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data", *option)
        assert code == 10 and "exists" in err
    assert Path("out/annotations/instances.json").read_bytes() == before and not list(Path("out").rglob("*.png"))
    assert run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data", "--overwrite")[0] == 0


def test_several_sources_and_pictures_that_are_elsewhere(anonface, key):
    make("coco")
    write("more/faces.json", json.dumps(coco({"train/a.jpg": (1, 1, 2, 2), "train/gone.jpg": (1, 1, 2, 2)})))
    write("data/readme.txt", "no labels\n")
    sources = ["--annotations", "more/faces.json", "--annotations", "data"]
    code, result, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", *sources)
    assert code == 0 and result["annotations"]["not_among_the_photos"] == 1 and "1 not among the photos" in err
    assert "1 file in no known format left behind" in err
    assert [image["file_name"] for image in json.loads(Path("out/faces.json").read_text())["images"]] == [
        "train/a.anon.jpg"
    ]
    assert Path("out/annotations/instances.json").exists() and not Path("out/readme.txt").exists()


def test_jpeg_results_and_names_of_ones_own(anonface, key):
    make("yolo")
    args = ["data", "-r", "-o", "out", "--annotations", "data/data.yaml"]
    args += ["--format", "jpeg", "--name", "{stem}_new{ext}"]
    assert run(anonface, "anonymize", key, *args)[0] == 0
    assert Path("out/labels/train/a_new.txt").read_bytes() == Path("data/labels/train/a.txt").read_bytes()
    assert Path("out/train.txt").read_bytes() == b"./images/train/a_new.jpg\r\n./images/train/b_new.jpg\r\n"


def test_labels_of_another_part_are_not_taken(anonface, key):
    """data/labels/val/a.txt does not belong to data/images/train/a.jpg."""
    make("yolo")
    run(anonface, "anonymize", key, "data/images/train", "-o", "out", "--annotations", "data/labels")
    assert Path("out/labels/train/a.anon.txt").read_text() == yolo(BOXES["train/a.jpg"])
    assert not Path("out/labels/val").exists()


def test_one_name_for_two_photos_is_refused(anonface, key):
    make("coco")
    write("names.json", json.dumps(coco({"a.jpg": (1, 1, 2, 2)})))
    code, _, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "names.json")
    assert code == 2 and "'a.jpg' in" in err and not Path("out").exists()


def test_a_dry_run_checks_annotations_and_writes_nothing(anonface, key, monkeypatch):
    make("coco")
    write("bad.json", "{")
    assert anonface("anonymize", "data", "-r", "-o", "out", "--annotations", "bad.json", "--dry-run")[0] == 4
    assert not Path("out").exists()
    args = ("anonymize", "data", "-r", "-o", "out", "--annotations", "data", "--dry-run", "--no-face", "copy")
    monkeypatch.setattr("anonface.faces.detect.build_detector", lambda name: None)
    monkeypatch.setattr("anonface.faces.locate.locate", lambda *_: [])
    code, _, err = anonface(*args)
    assert code == 0 and "annotations: 1 file would be written below out" in err and not Path("out").exists()


# --- Orientation ------------------------------------------------------------------------------------------------------


def turned_photo(orientation):
    """A photo of 40 x 32 stored pixels, of which that at (35, 20) is white, under an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.new("RGB", SIZE, (120, 60, 40))
    picture.putpixel((35, 20), (255, 255, 255))
    Path("data").mkdir()
    picture.save("data/a.png", exif=exif)


@pytest.mark.parametrize("orientation", range(5, 9))
def test_annotations_of_the_stored_picture_are_turned_with_it(anonface, key, orientation):
    """A box about one white pixel is about it in the upright picture too."""
    turned_photo(orientation)
    pixel = {"a.png": (35, 20, 1, 1)}
    content = coco(pixel)
    content["annotations"][0]["segmentation"] = [[35, 20, 36, 20, 36, 21]]
    content["annotations"][0]["keypoints"] = [35.5, 20.5, 2, 0, 0, 0]
    write("coco.json", json.dumps(content))
    write("cvat.xml", cvat(pixel, shapes='<polygon label="a" points="35.0,20.0;36.0,20.0;36.0,21.0"/>'))
    write("voc/a.xml", voc("a.png", (36, 21, 0, 0)))  # counted from 1
    write("yolo/a.txt", yolo(pixel["a.png"]))
    sources = [part for name in ("coco.json", "cvat.xml", "voc", "yolo") for part in ("--annotations", name)]
    code, _, err = run(anonface, "anonymize", key, "data", "-o", "out", *sources)
    assert code == 0 and "annotations of 3 pictures as stored were turned" in err
    assert "EXIF turns 1 photo; their annotations are taken as made on the upright" in err
    with Image.open("out/a.anon.png") as image:
        assert image.size == SIZE[::-1]
    (row,), (column,) = np.nonzero((read_photo(Path("data/a.png").read_bytes()).pixels == 255).all(2))
    x, y = int(column), int(row)
    told = json.loads(Path("out/coco.json").read_text())
    assert (told["images"][0]["width"], told["images"][0]["height"]) == SIZE[::-1]
    assert told["annotations"][0]["bbox"] == [x, y, 1, 1]
    assert told["annotations"][0]["keypoints"] == [x + 0.5, y + 0.5, 2, 0, 0, 0]
    assert all(x <= v <= x + 1 for v in told["annotations"][0]["segmentation"][0][::2])
    image = ET.parse("out/cvat.xml").getroot().find("image")
    assert [float(image.find("box").get(n)) for n in ("xtl", "ytl", "xbr", "ybr")] == [x, y, x + 1, y + 1]
    assert all(y <= float(p.split(",")[1]) <= y + 1 for p in image.find("polygon").get("points").split(";"))
    corners = ET.parse("out/voc/a.anon.xml").getroot().find("object/bndbox")
    assert [int(corner.text) for corner in corners] == [x + 1, y + 1, x + 1, y + 1]
    assert Path("out/yolo/a.anon.txt").read_bytes() == Path("yolo/a.txt").read_bytes()


def test_annotations_of_the_upright_picture_stay(anonface, key):
    turned_photo(6)
    upright = {"a.png": (3, 35, 2, 2)}
    write("coco.json", json.dumps(coco(upright, width=32, height=40)))
    code, _, err = run(anonface, "anonymize", key, "data", "-o", "out", "--annotations", "coco.json")
    assert code == 0 and "EXIF" not in err and "stored" not in err
    assert json.loads(Path("out/coco.json").read_text())["annotations"] == coco(upright)["annotations"]


def test_shapes_that_cannot_be_turned_are_left_out_and_other_sizes_are_said(anonface, key):
    turned_photo(6)
    photo("data/b.png")
    photo("data/c.png")
    content = coco({"a.png": (35, 20, 1, 1), "b.png": (1, 1, 2, 2), "c.png": (1, 1, 2, 2)})
    content["annotations"][0]["segmentation"] = {"size": [32, 40], "counts": "abc"}
    content["images"][1].update(width=100, height=100)
    write("coco.json", json.dumps(content))
    code, _, err = run(anonface, "anonymize", key, "data", "-o", "out", "--annotations", "coco.json")
    assert code == 0 and "annotations of 1 picture left out: masks" in err
    assert "1 picture of another size than the annotations say" in err and "'b.png' is 40x32, not 100x100" in err
    told = json.loads(Path("out/coco.json").read_text())
    assert [image["file_name"] for image in told["images"]] == ["b.anon.png", "c.anon.png"]
    assert len(told["annotations"]) == 2


def test_files_that_are_carried_are_not_called_ignored(anonface, key):
    make("yolo")
    write("data/notes.md", "words")
    _, result, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data")
    assert result["ignored_files"] == {".md": 1} and "1 file ignored; not photos by name: 1 .md" in err
    assert re.search(r"annotations: \d files written$", err, re.MULTILINE)


def test_labels_that_yolo_would_not_find_are_named(anonface, key):
    """Photos of data/images go to the top of the results; labels of another folder go below its name."""
    make("yolo")
    args = ("-r", "--annotations", "data/labels")
    _, result, err = run(anonface, "anonymize", key, "data/images", "-o", "out", *args)
    assert "such as '" in err and "where YOLO does not look" in err
    assert Path("out/labels/train/a.anon.txt").exists() and result["annotations"]["written"]
    for place in ("data/labels", "data"):
        _, _, err = run(anonface, "anonymize", key, "data", "-r", "-o", f"to/{place}", "--annotations", place)
        assert "where YOLO looks" not in err


def test_files_of_data_sets_may_be_larger_than_photos(anonface, key, monkeypatch):
    make("coco")
    size = Path("data/annotations/instances.json").stat().st_size
    assert sources.MOST_BYTES == 4 * MAX_FILE_BYTES
    monkeypatch.setattr("anonface.annotations.sources.MOST_BYTES", size - 1)
    code, _, err = run(anonface, "anonymize", key, "data", "-r", "-o", "other", "--annotations", "data")
    assert code == 11 and "hint: split it, and anonymize the photos of each part" in err


# --- Bad input --------------------------------------------------------------------------------------------------------

LAUGHS = """<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>
<annotation><filename>&b;</filename></annotation>"""


def broken_coco(change):
    content = coco()
    change(content)
    return json.dumps(content)


BROKEN = {
    "half.json": (json.dumps(coco())[:-20], "not valid JSON"),
    "deep.json": ("[" * 100_000, "nested too deeply"),
    "empty.json": ("", "not valid JSON"),
    "other.json": ('{"version": 1}', "no annotations in a known format"),
    "nan.json": (json.dumps(coco()).replace("10.1", "NaN"), "NaN is not a number"),
    "huge.json": (json.dumps(coco()).replace("10.1", "1e999"), "1e999 is not a number"),
    "text.json": (broken_coco(lambda c: c["annotations"][0].update(bbox=["a", 1, 2, 3])), "'a' is not a number"),
    "three.json": (broken_coco(lambda c: c["annotations"][0].update(bbox=[1, 2, 3])), "four numbers"),
    "outside.json": (broken_coco(lambda c: c["annotations"][0].update(bbox=[50, 1, 2, 3])), "outside the picture"),
    "negative.json": (broken_coco(lambda c: c["annotations"][0].update(bbox=[5, 1, -2, 3])), "negative width"),
    "polygon.json": (broken_coco(lambda c: c["annotations"][0].update(segmentation=[[None]])), "None is not a number"),
    "list.json": (broken_coco(lambda c: c.update(images=7)), "'images' is not a list"),
    "nameless.json": (broken_coco(lambda c: c["images"][0].pop("file_name")), "has no file_name"),
    "twice.json": (broken_coco(lambda c: c["images"][0].update(id=11)), "two images have the id 11"),
    "laughs.xml": (LAUGHS, "document type (DTD)"),
    "external.xml": ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "document type (DTD)"),
    "half.xml": (cvat()[:-30], "not well-formed XML"),
    "deep.xml": ("<annotation>" * 1000 + "</annotation>" * 1000, "nested too deeply"),
    "wide.xml": (voc("a.jpg", (1, 1, 2, 2)).encode("utf-16"), "UTF-16"),
    "strange.xml": (b'<?xml version="1.0" encoding="klingon"?><annotation/>', "encoding"),
    "no_name.xml": ("<annotation><size/></annotation>", "no <filename>"),
    "outside.xml": (voc("a.jpg", (50, 1, 2, 2)), "outside the picture"),
    "reversed.xml": (voc("a.jpg", (9, 1, -2, 2)), "negative width"),
    "text.xml": (voc("a.jpg", (1, 1, 2, 2)).replace("<xmin>1<", "<xmin>one<"), "'one' is not a number"),
    "cornerless.xml": (voc("a.jpg", (1, 1, 2, 2)).replace("xmin", "left"), "no <xmin>"),
    "video.xml": ("<annotations><track/></annotations>", "for video"),
    "points.xml": (cvat(shapes='<polygon points="1,2;x,3"/>'), "'x' is not a number"),
    "edge.xml": (cvat().replace(' xbr="', ' right="', 1), "has no xbr"),
    "other.xml": ("<svg/>", "no annotations in a known format"),
    "words.txt": ("these are words\n", "no annotations in a known format"),
    "pixels.txt": ("0 20 16 10 12\n", "YOLO labels are from 0 to 1"),
    "nan.txt": ("0 nan 0.5 0.1 0.1\n", "not a finite number"),
    "class.txt": ("0.5 0.5 0.5 0.1 0.1\n", "not the number of a class"),
    "outside.txt": ("0 1.5 0.5 0.1 0.1\n", "outside the picture"),
    "negative.txt": ("0 0.5 0.5 -0.1 0.1\n", "negative width"),
    "missing.json": (None, "cannot be read"),
    "nothing/": (None, "holds no annotations"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_annotations_are_refused_in_one_line_before_any_work(anonface, key, name):
    photo("data/train/a.jpg")
    content, said = BROKEN[name]
    if content is not None:
        write(name, content)
    elif name.endswith("/"):
        Path(name).mkdir()
    code, _, err = anonface("anonymize", "data", "-r", "-o", "out", "--annotations", name, "--key-file", key)
    assert code == 4 and said in err, err
    assert len([line for line in err.splitlines() if "anonface: error" in line or "hint" not in line]) == 1, err
    assert "Traceback" not in err and not Path("out").exists()


def test_a_label_of_a_photo_that_is_no_label_is_refused(anonface, key):
    make("yolo")
    write("data/labels/train/a.txt", "0 0.5 0.5 0.1\n")
    code, _, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data")
    assert code == 4 and "at least four numbers" in err and not Path("out").exists()


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["-o", "data/out", "--annotations", "data"], 10, "would lie in the folder of annotations"),
        (["-o", "data", "--annotations", "data/annotations/instances.json"], 10, "which is read here"),
        (["--annotations", "data"], 2, "needs a folder"),
        (["-o", "out", "--annotations", "foreign.json"], 2, "name none of the photos"),
        (["-o", "out", "--annotations", "data", "--report", "out/annotations/instances.json"], 2, "is also"),
    ],
)
def test_places_that_are_refused(anonface, key, args, code, said):
    make("coco")
    write("foreign.json", json.dumps(coco({"else.png": (1, 1, 2, 2)})))
    before = sorted(Path().rglob("*"))
    got, _, err = run(anonface, "anonymize", key, "data", "-r", *args)
    assert got == code and said in err and sorted(Path().rglob("*")) == before


def test_boxes_that_reach_beyond_and_addresses_are_said(anonface, key):
    make("coco")
    content = coco({**BOXES, "train/a.jpg": (30, 20, 20, 20)}, flickr_url="http://example.org/1.jpg")
    write("data/annotations/instances.json", json.dumps(content))
    code, _, err = run(anonface, "anonymize", key, "data", "-r", "-o", "out", "--annotations", "data")
    assert (
        code == 0
        and "1 box beyond the edge of a picture" in err
        and "addresses that may lead to the originals" not in err
    )
    assert "holds addresses that may lead to the original photos" in err


def test_bytes_about_a_changed_name_stay(anonface, key):
    """A byte order mark, CDATA, comments that look like elements, and > in attributes."""
    photo("data/a.png")
    voc_file = (
        "\ufeff<annotation a='1>0'><!-- <filename>no</filename> --><filename b='>'\n><![CDATA[a.png]]></filename>"
        "<object><name>é</name></object></annotation>"
    )
    cvat_file = (
        "<annotations><image label=' name=\"x\"' id='0'\n  name = 'a.png' width='40' height='32'/></annotations>"
    )
    write("xml/a.xml", voc_file)
    write("cvat.xml", cvat_file)
    sources = ("--annotations", "xml", "--annotations", "cvat.xml")
    code, _, err = run(anonface, "anonymize", key, "data", "-o", "out", *sources)
    assert code == 0, err
    assert Path("out/xml/a.anon.xml").read_text() == voc_file.replace("<![CDATA[a.png]]>", "a.anon.png")
    assert Path("out/cvat.xml").read_text() == cvat_file.replace("'a.png'", '"a.anon.png"')


def test_names_that_xml_and_latin_1_need_to_escape(anonface, key):
    photo("data/Zoë & 'x'.jpg")
    data = (
        '<?xml version="1.0" encoding="latin-1"?>\n<annotation><filename>Zo\xeb &amp; \'x\'.jpg</filename></annotation>'
    )
    write("xml/Zoë & 'x'.xml", data.encode("latin-1"))
    args = ["data", "-o", "out", "--annotations", "xml", "--name", "日 {stem}{ext}"]
    code, _, err = run(anonface, "anonymize", key, *args)
    assert code == 0, err
    assert ET.parse("out/xml/日 Zoë & 'x'.xml").getroot().find("filename").text == "日 Zoë & 'x'.jpg"
