"""Where the training text comes from: files of Debian packages, as paragraphs by kind of text.

PACKAGES is what must be installed, for held_out.py too. README.md in this directory has the licences.
"""
import fnmatch
import gzip
import html
import os
import re
import subprocess

PACKAGES = ("adwaita-icon-theme base-files bible-kjv bible-kjv-text debian-faq debian-handbook debian-policy doc-debian "
            "ieee-data jargon-text libpython3.11-minimal libpython3.11-stdlib libsoftware-license-perl linux-libc-dev "
            "manpages manpages-dev media-types miscfiles netbase pci.ids perl-doc postgresql-doc-15 sqlite3-doc tzdata "
            "unicode-data units usb.ids").split()
HELD_OUT_BOOK = "Eze"
QUOTES = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "—": "-", "–": "-", "\u00a0": " "})


def read(path):
    """The text of a file, gzipped or not, in ASCII."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        return file.read().translate(QUOTES).encode("ascii", "ignore").decode()


def plain_html(text):
    """The text of an HTML page, a blank line between its blocks."""
    text = re.sub(r"(?is)<(script|style|head)\b.*?</\1>|<!--.*?-->", " ", text)
    text = re.sub(r"(?i)</?(p|div|h[1-6]|li|dt|dd|tr|pre|table|ul|ol|dl|section)\b[^>]*>", "\n\n", text)
    text = re.sub(r"(?i)</t[dh]>", " ", text)
    return html.unescape(re.sub(r"<[^>]+>", "", text)).translate(QUOTES)


def plain_man(text):
    """A manual page without its roff requests."""
    text = re.sub(r'(?m)^[.\']\\".*$', "", text)
    text = re.sub(r"(?m)^\.(SH|SS|TP|PP|P|IP|LP|br|sp|nf|fi|EX|EE|RS|RE|TQ|in|ad|PD|UR|UE|hy|na|ne|ti)\b.*$", "\n", text)
    text = re.sub(r'(?m)^\.\w+ ?', "", text).replace("\\-", "-").replace("\\e", "\\")
    return re.sub(r"\\f(\(..|\[[^]]*\]|.)|\\&|\\[|^]|\\\((.).", r"\2", text)


def paragraphs(text):
    """Blocks between blank lines, their white space made single spaces."""
    blocks = (re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\n", text))
    return [block for block in blocks if len(block) > 30]


def line_blocks(text, lines=12):
    """Blocks of lines; of every two, one keeps its line breaks."""
    kept = [line.rstrip() for line in text.splitlines() if line.strip()]
    blocks = ["\n".join(kept[i:i + lines]) for i in range(0, len(kept), lines)]
    return [block if i % 2 else re.sub(r"\s+", " ", block).strip() for i, block in enumerate(blocks)]


def files(package, *patterns):
    """The files of an installed package that match one of the patterns, in which * also stands for slashes."""
    listing = subprocess.run(["dpkg", "-L", package], capture_output=True, check=True, text=True).stdout.splitlines()
    return sorted(path for path in listing
                  if os.path.isfile(path) and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns))


def bible_verses():
    """[(book, verse text)] in order."""
    dump = subprocess.run(["bible", "-f", "-l", "0"], input=b"gen1:1-rev22:21\n",
                          capture_output=True, check=True).stdout.decode("latin-1")
    matches = (re.match(r"^(\d?[A-Za-z]+)\d+:\d+ (.+)$", line) for line in dump.splitlines())
    return [(m.group(1), m.group(2).strip()) for m in matches if m]


def documents(paths, plain=lambda text: text, split=paragraphs):
    return [split(plain(read(path))) for path in paths]


def prose():
    verses = [text for book, text in bible_verses() if book != HELD_OUT_BOOK]
    chapters = [verses[i:i + 25] for i in range(0, len(verses), 25)]
    return chapters + documents(files("debian-handbook", "*/html/en-US/*.html"), plain_html)


def legal():
    held_out = ("/EUPL_1_1.pm", "/EUPL_1_2.pm", "/QPL_1_0.pm", "/Sun.pm")
    licenses = files("base-files", "/usr/share/common-licenses/*") + files("libsoftware-license-perl", "*/License/*.pm")
    notices = [path for package in PACKAGES for path in files(package, "*/copyright")]
    state = (files("miscfiles", "/usr/share/state/us-*") + files("doc-debian", "/usr/share/doc/debian/*.txt*")
             + files("debian-policy", "/usr/share/doc/debian-policy/*.txt.gz"))
    return documents([path for path in licenses if not path.endswith(held_out)] + notices + state)


def technical():
    manual_pages = files("manpages", "/usr/share/man/man?/*") + files("manpages-dev", "/usr/share/man/man?/*")
    pages = (files("sqlite3-doc", "*.html") + files("debian-faq", "*.en.html")
             + files("debian-policy", "*/fhs/*.html"))
    return (documents(files("jargon-text", "*/jargon.txt.gz")) + documents(manual_pages, plain_man)
            + documents(files("perl-doc", "*.pod")) + documents(pages, plain_html))


def code():
    python = files("libpython3.11-stdlib", "*.py") + files("libpython3.11-minimal", "*.py")
    return documents(python + files("linux-libc-dev", "/usr/include/linux/*.h"), split=line_blocks)


def tables():
    paths = (files("pci.ids", "*.ids") + files("usb.ids", "*.ids") + files("ieee-data", "*.txt")
             + files("tzdata", "*.tab", "*/tzdata.zi", "*/leap*") + files("netbase", "/etc/*")
             + files("media-types", "/etc/mime.types") + files("units", "*/definitions.units")
             + files("unicode-data", "*/UnicodeData.txt", "*/Blocks.txt", "*/EastAsianWidth.txt")
             + files("miscfiles", "*/cities.dat.gz", "*/airport.gz", "*phone.gz", "*postalcodes.gz", "*/currency.gz"))
    return documents(paths, split=line_blocks)


KINDS = {"prose": prose, "legal": legal, "technical": technical, "code": code, "tables": tables}
