"""Writes the held-out texts: the Book of Ezekiel, licences, and chapters of a database's manual.

usage: held_out.py OUTPUT_DIR
Needs the Debian packages bible-kjv, bible-kjv-text, adwaita-icon-theme, libsoftware-license-perl and postgresql-doc-15.
../texts/README.md says what the texts are and under which licences.
"""
import os
import re
import sys

import sources

LICENSES = ["CC-BY-SA-4.0", "CC-BY-SA-3.0-Unported", "CC-BY-3.0-US", "CC-BY-SA-3.0-US"]
LICENSE_MODULES = ["EUPL_1_2", "QPL_1_0", "Sun"]
MANUAL = ["kernel-resources", "server-start", "install-procedure", "upgrading", "install-post", "continuous-archiving",
          "creating-cluster", "pgtesttiming", "installation-platform-notes", "ssl-tcp", "rules-materializedviews",
          "monitoring-ps", "wal-configuration", "storage-file-layout", "storage-page-layout", "pgarchivecleanup",
          "using-explain", "datatype-numeric"]


def ezekiel():
    return [text for book, text in sources.bible_verses() if book == sources.HELD_OUT_BOOK]


def legal():
    text = sources.read("/usr/share/doc/adwaita-icon-theme/copyright")
    stanzas = {}
    for stanza in re.split(r"(?m)^License: ", text)[1:]:
        name, _, body = stanza.partition("\n")
        # A longer stanza is the licence itself; shorter ones name the files under it.
        stanzas[name] = max(stanzas.get(name, ""), re.split(r"(?m)^(?=\w+:)", body)[0], key=len)
    texts = [re.sub(r"(?m)^ \.$", "", stanzas[name]) for name in LICENSES]
    for module in LICENSE_MODULES:
        texts.append(sources.read(f"/usr/share/perl5/Software/License/{module}.pm").split("__LICENSE__")[1].split("\n__")[0])
    paragraphs = [paragraph for text in texts for paragraph in sources.paragraphs(text)]
    # Rulers, and where the icons under a licence are from.
    return [text for text in paragraphs if re.search("[A-Za-z]", text) and not text.startswith("From <")]


def technical():
    pages = (sources.read(f"/usr/share/doc/postgresql-doc-15/html/{name}.html") for name in MANUAL)
    bodies = (re.sub(r'(?s)<div (xmlns="[^"]*" )?class="nav(header|footer)".*?</div>', "", page) for page in pages)
    return [paragraph for body in bodies for paragraph in sources.paragraphs(sources.plain_html(body))]


def main():
    for name, paragraphs in {"ezekiel": ezekiel(), "licenses": legal(), "manual": technical()}.items():
        text = "\n".join(paragraphs) + "\n"
        with open(os.path.join(sys.argv[1], f"{name}.txt"), "w") as file:
            file.write(text)
        sentences = re.split(r"(?<=[.!?])\s", text)
        print(f"{name}.txt: {len(text)} characters, {len(sentences)} sentences, the longest {max(map(len, sentences))}")


if __name__ == "__main__":
    main()
