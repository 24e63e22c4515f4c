"""The examples at the end of every command's help."""

from __future__ import annotations

FIRST_STEPS = """\
anonface keygen my.key
anonface anonymize photo.jpg --key-file my.key
anonface recover photo.anon.jpg --key-file my.key"""

WEIGHTS_STEPS = """\
anonface weights list
anonface weights pull --needed-for evaluation"""

EXAMPLES = {
    "keygen": """\
anonface keygen my.key
anonface keygen my.key --passphrase""",
    "anonymize": """\
anonface anonymize photo.jpg --key-file my.key
anonface anonymize - --key-file my.key < photo.jpg > photo.anon.jpg
anonface anonymize group.jpg --key-file my.key --faces all-2
anonface anonymize album -r -o out --key-file my.key --review review.html
anonface anonymize data -r -o out --key-file my.key --annotations data""",
    "recover": """\
anonface recover photo.anon.jpg --key-file my.key
anonface recover out -r -o recovered --key-file my.key
anonface recover photo.jpg --stateless --key-file my.key""",
    "detect": """\
anonface detect photo.jpg -o boxes.png
anonface detect photo.jpg -o boxes.png --box 918,440,26,80
anonface detect album -r --coco faces.json""",
    "review": """\
anonface review album out -r -o review.html
anonface review --report report.json -o review.html""",
    "inspect": """\
anonface inspect photo.anon.jpg
anonface inspect photo.anon.jpg.anf --json""",
    "strip": """\
anonface strip photo.anon.jpg
anonface strip photo.anon.jpg -o public.jpg""",
    "rekey": """\
anonface rekey photo.anon.jpg --old-key-file my.key --new-key-file new.key
anonface rekey photo.anon.jpg --new-key-file new.key -o shared.jpg
anonface rekey - --old-key-file my.key --new-key-file b.key < a.jpg > b.jpg""",
    "compare": """\
anonface compare photo.jpg -o sheet.png --key-file my.key
anonface compare album -o all.png --key-file my.key --compare-with dbaf,hford""",
    "evaluate": """\
anonface evaluate album --quick
anonface evaluate album --report report.html --journal run.jsonl
anonface evaluate album --compare-with all --limit 8 --keys 1""",
    "blind-score": """\
anonface evaluate album --blind sheets
anonface blind-score sheets.key.json answers.json""",
    "audit": """\
anonface audit album
anonface audit album --attacks key-guessing,tampering --report audit.json""",
    "train": """\
anonface train parser runs/parser
anonface train diffusion runs/diffusion --device cuda --minutes 60""",
    "doctor": """\
anonface doctor
anonface doctor --json""",
    "weights list": """\
anonface weights list
anonface weights list --json""",
    "man": """\
anonface man > anonface.1  # then `man -l anonface.1` shows it
anonface man""",
    "weights pull": """\
anonface weights pull
anonface weights pull --needed-for evaluation
anonface weights pull yunet generator""",
    "weights verify": """\
anonface weights verify
anonface weights verify yunet""",
    "weights licenses": """\
anonface weights licenses
anonface weights licenses generator""",
}
