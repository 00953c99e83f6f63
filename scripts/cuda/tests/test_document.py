import document
import pytest

TEXT = "a\n<!-- t: begin -->\nold\n<!-- t: end -->\nb\n<!-- u: begin -->\n<!-- u: end -->\n"


def test_only_text_between_the_markers_changes():
    text = document.write_between(TEXT, "t", "new\n")
    assert text == TEXT.replace("old", "new")
    assert document.read_between(text, "t") == "new\n"
    assert document.read_between(text, "u") == ""


@pytest.mark.parametrize("text", ["", TEXT.replace("t: end", "end"), TEXT + TEXT, TEXT + "<!-- t: begin -->\n",
                                  "<!-- t: end -->\n<!-- t: begin -->\n"])
def test_markers_must_occur_once(text):
    with pytest.raises(SystemExit, match="needs one line"):
        document.read_between(text, "t")
