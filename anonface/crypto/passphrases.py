"""Passphrases and key files as texts: generated passphrases, byte order marks, UTF-16, and which passphrases are too
easy to guess."""

from __future__ import annotations

import codecs
import secrets
import unicodedata
from functools import cache

from anonface.errors import KeyFileError, count

LEAST = 12
"""Characters of a passphrase; below that, and among common ones, a guesser with a GPU gets through."""
MAX_FILE = 64 * 1024  # bytes of a passphrase file
WORDS, SYLLABLES = 6, 2  # of a generated passphrase, and of each of its words
CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"  # of which one each makes a syllable
_LEAST_DIGITS = 20  # characters of a passphrase of digits alone
_LEAST_DIFFERENT = 5  # characters
_FREE_DIGITS = 10  # so many digits add nothing to common words
_HINT = "take five or more random words, or accept it as it is with --weak-passphrase"

# Separators, capitals, digits around them and letters written as digits are ignored; so is any sequence of these.
_COMMON = """
123abc abc123 abcabc access account adidas admin administrator adobe alexander amanda america andrea andrew angel angels
animal anonymous anthony apple april arsenal asdf asdfasdf asdfgh asdfghjkl ashley august austin baby babygirl
bailey banana barcelona barney baseball basketball batman beach bear beautiful believe benjamin bitcoin blahblah
blessed blink bond boston brandon buster butterfly california camaro carlos casper change changeit changeme charles
charlie cheese chelsea chicago chicken chocolate chris christian christopher classic cocacola coffee compaq computer
cookie cool cooldude corvette cowboy crystal dallas daniel danielle database david december default diamond dog
dolphin donald donkey dragon eagle eagles elephant eminem england facebook family fantasy february ferrari fishing
flower football forever freedom friend friends  gateway george ginger god goodluck google guest guitar
hannah happy harley hello helloworld hockey home hunter iamgod iceman iloveu iloveyou internet iwantu jackson january
jasmine jennifer jessica jesus jordan jordans joseph joshua july june justin killer kitty knight lakers laptop letmein
letmeinnow linkedin lauren liverpool login london loveme lovely lover loveyou lucky madison maggie manchester marina
march marlboro martin master matrix matthew maverick maxwell merlin michael michelle mickey microsoft minecraft money
monkey monster morgan mother mountain mustang myspace naruto nathan newyork nicholas nicole nintendo nothing november
number october office oliver orange passphrase passw0rd password passwort pass patrick peaches peanut pepper phoenix
photo photos pokemon police porsche prince princess private purple qazwsx qazwsxedc qwer qwert qwerty qwertyuiop
qwertzuiop raiders rainbow ranger realmadrid rebecca red robert rockstar root rosebud samantha samsung scooter secret
security september server shadow silver simple skype slipknot snoopy soccer sophie spiderman startrek starwars steelers
steven stupid summer sunday sunflower sunshine super superman superstar support sweet sweety sysadmin system taylor
temp temporary teresa test tester testing thankyou thomas thunder tigger tinkerbell trustme trustno tucker turtle
twitter user username victoria video viking virus warcraft warrior welcome whatever whoami william windows winner winter
wizard wordpress yamaha yankees yellow zaqwsx zxcvbn zxcvbnm 1q2w3e 1q2w3e4r 1q2w3e4r5t 1qaz 2wsx 3edc 4rfv zaq1 xsw2
correcthorsebatterystaple horsebatterystaple maytheforcebewithyou theforce iloveyousomuch loveyousomuch ihateyou
thequickbrownfox quickbrownfox jumpsoverthelazydog tobeornottobe thatisthequestion loremipsum dolorsitamet openthedoor
opensesame abracadabra supercalifragilisticexpialidocious antidisestablishmentarianism donaudampfschifffahrt
winteriscoming valarmorghulis onceuponatime inthebeginning ourfatherwhoartinheaven inheaven godisgood jesuschrist
jesuslovesyou ilovejesus ilovegod iloveyoubaby loveyouforever foreverandever liveandletlive carpediem cogitoergosum
veniviodivici venividivici hakunamatata justdoit imlovinit keepcalmandcarryon dontforget nevergonnagiveyouup
giveyouup allyourbasearebelongtous livelonganddprosper livelongandprosper bethechange mypassword mysecret
mysecretpassword thisismypassword thisisasecret thisisapassword thispasswordissecure notmypassword newpassword
oldpassword strongpassword longpassword verylongpassword nopassword anypassword apassword thepassword yourpassword
passwordpassword enterpassword forgotpassword forgottenpassword iforgot iforgotmypassword iforgotit dontknow idontknow
mastermaster masterkey masterpassword secretkey secretpassword topsecret verysecret supersecret privatekey keyfile
anonface anonymize testpassword testpassphrase mypassphrase apassphrase secretpassphrase longpassphrase examplepassword
example sample demo demodemo foobar foobarbaz hunter2 passe motdepasse contrasena contraseña senha lozinka hasło haslo
salasana wachtwoord geheim geheimnis passwoord parola пароль йцукен йцукенг йцукенгшщз kennwort adgangskode heslo
iloveyoumom iloveyoudad ilovemyself ilovemyfamily ilovemydog ilovemycat ilovemum mommy daddy happybirthday birthday
merrychristmas christmas happynewyear newyear goodmorning goodnight manchesterunited chelseafc arsenalfc liverpoolfc
realmadrid fcbarcelona bayernmunich harrypotter lordoftherings starwarsfan gameofthrones mickeymouse winniethepooh
hellokitty spongebob donaldduck blackberry motorola playstation gamecube counterstrike callofduty leagueoflegends
"""
_RUNS = (
    "1234567890",
    "abcdefghijklmnopqrstuvwxyz",
    "qwertyuiopasdfghjklzxcvbnm",
    "qwertyuiop",
    "qwertzuiop",
    "asdfghjkl",
    "!@#$%^&*()_+",
)
_LETTERS = str.maketrans("01345789@$!|+", "oieastbgasiit")


def text_of(data: bytes) -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16; the mark is no part of it.

    Raises:
        KeyFileError: it is neither.
    """
    try:
        if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
            raise KeyFileError("it is UTF-32 text, which is not read", "save it as UTF-8")
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KeyFileError(f"it is no text in UTF-8 or UTF-16 ({error.reason})", "save it as UTF-8") from None
    if "\0" in text:
        raise KeyFileError("it holds zero bytes, as UTF-16 without a byte order mark does", "save it as UTF-8")
    return text


def is_text(data: bytes) -> bool:
    """Whether bytes are something that was typed, in UTF-8 or UTF-16: random ones of a key never look like it."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or not any(data[1::2]) or not any(data[::2])
    try:
        if not wide:
            text = data.decode("utf-8-sig")
        elif data[:1] == b"\xfe" or not data[0]:
            text = data.removeprefix(codecs.BOM_UTF16_BE).decode("utf-16-be")
        else:
            text = data.removeprefix(codecs.BOM_UTF16_LE).decode("utf-16-le")
    except UnicodeDecodeError:
        return False
    return all(c.isprintable() or c.isspace() for c in text) and (not wide or len({ord(c) >> 8 for c in text}) < 3)


def generate() -> str:
    """A random passphrase of pronounceable words, as "bako-neri-...". Each of the (16 * 5) ** 12 is as likely: 75 bits.

    Words that :func:`refuse_weak` refuses are too few to count.
    """
    while True:
        words = ("".join(_syllable() for _ in range(SYLLABLES)) for _ in range(WORDS))
        if not is_common(text := "-".join(words)):
            return text


def _syllable() -> str:
    return secrets.choice(CONSONANTS) + secrets.choice(VOWELS)


def refuse_weak(passphrase: str) -> None:
    """Refuse a new passphrase that is easily guessed: what is sealed under it can be tried offline for ever.

    Raises:
        KeyFileError: it is short, or a common one.
    """
    text = unicodedata.normalize("NFC", passphrase)
    if len(text) < LEAST:
        raise KeyFileError(f"the passphrase has {count(len(text), 'character')}, at least {LEAST} are needed", _HINT)
    if is_common(text):
        raise KeyFileError("the passphrase is a common one, which is guessed at once", _HINT)


def is_common(text: str) -> bool:
    """Whether a text is made of common passphrases, of a run of keys or letters, or of little that is repeated."""
    folded = text.casefold()
    bare = "".join(c for c in folded if c.isalnum())
    if 3 * len(bare) < 2 * len(folded):  # signs are most of it
        bare = folded
    digits = sum(c.isdigit() for c in bare)
    if len(set(folded)) < _LEAST_DIFFERENT or (digits == len(bare) and len(bare) < _LEAST_DIGITS):
        return True
    if any((bare[:size] * len(bare))[: len(bare)] == bare for size in range(1, LEAST // 2 + 1)):
        return True
    if any(bare in line * (len(bare) // len(line) + 2) for run in _RUNS for line in (run, run[::-1])):
        return True
    core = "".join(c for c in folded.strip("0123456789 \t!?.,;:-_*#+") if c.isalnum() or c in "@$!|+")
    variants = {bare} if digits <= _FREE_DIGITS else set()
    return any(_is_made_of_common(variant) for variant in variants | {core.translate(_LETTERS)} if variant)


def _is_made_of_common(text: str) -> bool:
    """Whether a text is a sequence of common ones, and of digits."""
    words, longest = _words()
    reached = [True] + [False] * len(text)
    for end in range(1, len(text) + 1):
        reached[end] = (reached[end - 1] and text[end - 1].isdigit()) or any(
            reached[start] and text[start:end] in words for start in range(max(0, end - longest), end)
        )
    return reached[-1]


@cache
def _words() -> tuple[frozenset[str], int]:
    words = frozenset(_COMMON.split())
    return words | {word.translate(_LETTERS) for word in words}, max(map(len, words))
