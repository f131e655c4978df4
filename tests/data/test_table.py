from __future__ import annotations

import pytest

from nearkin import data


def written(tmp_path, text):
    path = tmp_path / "images.csv"
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_splits_queries_and_gallery(tmp_path):
    path = written(
        tmp_path,
        "path,label,split,is_query,is_gallery\n"
        'a.jpg,x,train,,\n"b, c.jpg",y,validation,,\n'
        "d.jpg,z,test,True,0\ne.jpg,z,test,no,1\nf.jpg,w,test,1,1\n",
    )
    found = data.build("csv", root=path)
    splits = {split: part for split, part in vars(found).items() if isinstance(part, data.SampleSet)}
    names = {split: [part.samples.name(i) for i in range(len(part))] for split, part in splits.items()}
    assert names == {
        "train": ["a.jpg"],
        "validation": ["b, c.jpg"],
        "test": ["d.jpg", "e.jpg", "f.jpg"],
        "query": ["d.jpg", "f.jpg"],
        "gallery": ["e.jpg", "f.jpg"],
    }
    assert found.train.samples.path(0) == tmp_path / "a.jpg"
    elsewhere = data.build("csv", root=path, images_root=tmp_path / "photos")
    assert elsewhere.train.samples.path(0) == tmp_path / "photos/a.jpg"


def test_without_a_split_classes_are_held_out(tmp_path):
    path = written(tmp_path, "label,path\n" + "".join(f"{i % 6},{i}.jpg\n" for i in range(12)))
    found = data.build("csv", root=path)
    assert (found.train.num_classes, found.test.num_classes) == (3, 3)
    assert found.query is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "file,class\n",
            "no column label and no column path in its first line, whose columns are file, class: .* say by "
            "data.label_column and data.path_column",
        ),
        ("path,label,Label\na.jpg,x,y\n", "two columns are called 'label'"),
        ("path,label\n", "no lines below its first"),
        ("path,label\na.jpg\n", "line 2: not as many fields"),
        ("path,label\na.jpg,b,c\n", "line 2: not as many fields"),
        (
            "path,label,split\na.jpg,b,train\nc.jpg,d,tset\n",
            "line 3: split is 'tset', not one of train, validation",
        ),
        ("path,label,split\na.jpg,b,train\n", "no line has the split test"),
        (
            "path,label,split,is_query\na.jpg,b,train,\nc.jpg,d,test,maybe\n",
            "line 3: 'maybe' is neither true nor",
        ),
        ("path,label,split\na.jpg,b,train\nc.jpg,b,test\n", "class 'b' is in train and in test"),
        ("path,label\na.jpg,b\nc.jpg, \n", "line 3: the label is empty"),
        ("path,label\n,b\n", "line 2: the path is empty"),
        ('path,label\n"a\nb.jpg",b\nc.jpg,\n', "line 4: the label is empty"),
        (
            "path,label\na.jpg,b\nc.jpg,d\na.jpg,d\n",
            "a.jpg has the label 'b' in line 2 and 'd' in line 4",
        ),
        (
            "path,label\na.jpg,b\nc.jpg,\nd.jpg,\ne.jpg,\n",
            "line 3: the label is empty, and likewise 2 other lines$",
        ),
        (
            "path,label\na.jpg,b\nc.jpg,d\na.jpg,d\na.jpg,e\nc.jpg,b\n",
            "'d' in line 4, and likewise 1 other image$",
        ),
        (
            "path,label,split\na.jpg,b,train\na.jpg,b,test\n",
            "a.jpg has the split 'train' in line 2 and 'test' in line 3",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        data.build("csv", root=written(tmp_path, text))


def test_repeated_lines_are_read_once_with_a_note(tmp_path):
    path = written(tmp_path, "path,label\na.jpg,x\nb.jpg,y\na.jpg,x\na.jpg,x\n")
    found = data.table(path)
    assert len(found.train) + len(found.test) == 2
    assert found.notes == ("images.csv: 2 lines repeat an image of an earlier line, and are read once",)
    assert data.table(written(tmp_path, "path,label\na.jpg,x\nb.jpg,y\n")).notes == ()
    with pytest.raises(ValueError, match="^test_fraction=0.1 of 2 classes"):
        data.table(path, test_fraction=0.1)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("path,label\na b.jpg,x\nc.jpg,y\n", "utf-8-sig"),
        ("path;label\na b.jpg;x\nc.jpg;y\n", "utf-8"),
        ("path\tlabel\r\na b.jpg\tx\r\nc.jpg\ty\r\n", "utf-16"),
        ("Path, Label\na b.jpg, x\nc.jpg, y\n", "utf-8"),
        ('"path";"label";"price"\n"a b.jpg";"x";"1,5"\n"c.jpg";"y";"2,5"\n', "utf-8"),
    ],
)
def test_tables_are_read_as_spreadsheets_write_them(tmp_path, text, encoding):
    path = tmp_path / "images.csv"
    path.write_bytes(text.encode(encoding))
    found = data.table(path)
    samples = {
        part.samples.name(i): part.class_names[int(part.labels[i])]
        for part in (found.train, found.test)
        for i in range(len(part))
    }
    assert samples == {"a b.jpg": "x", "c.jpg": "y"}


def test_columns_may_be_called_otherwise_and_splits_as_folders_are(tmp_path):
    path = written(tmp_path, "Image,Species,label,split\na.jpg,x,1,Train\nb.jpg,y,1,val\nc.jpg,z,1,testing\n")
    found = data.table(path, path_column="Image", label_column="species")
    assert (found.train.class_names, found.validation.class_names) == (("x",), ("y",))
    assert (found.test.class_names, found.test.samples.name(0)) == (("z",), "c.jpg")


def test_a_table_in_another_encoding_is_refused_with_its_line(tmp_path):
    path = tmp_path / "images.csv"
    path.write_bytes("path,label\na.jpg,x\nb.jpg,Häher\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"images.csv, line 3: no text in UTF-8; save the table"):
        data.table(path)


def test_a_table_of_no_known_kind_is_told_what_the_kinds_are(tmp_path):
    (tmp_path / "t.csv").write_text("image,caption\n0.png,a wren\n")
    with pytest.raises(ValueError, match="no column label and no column path .* images with texts image"):
        data.as_data_set(tmp_path / "t.csv")
