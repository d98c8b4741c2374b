from text import UNKNOWN, decode, encode, passages, reference_words, share_of_real_phrases, vocabulary


def test_the_vocabulary_covers_most_of_the_text() -> None:
    words = reference_words()
    assert len(words) > 50_000
    known = set(vocabulary(1024))
    assert len(known) == 1024 and vocabulary(1024)[0] == UNKNOWN
    assert sum(word in known for word in words) / len(words) > 0.9


def test_words_come_back_from_their_ids() -> None:
    passage = "the value of the object zzzz"
    ids = encode(passage, 1024)
    assert ids[-1] == 0 and 0 not in ids[:-1]
    assert decode(ids, 1024) == passage.replace("zzzz", UNKNOWN)


def test_passages_start_where_they_should() -> None:
    words = reference_words()
    found = passages(8, every=5)
    assert found[0].split() == list(words[:8])
    assert found[1].split() == list(words[5:13])
    assert all(len(passage.split()) == 8 for passage in found)
    assert len(found) == (len(words) - 8) // 5 + 1


def test_the_reward_counts_real_phrases_once() -> None:
    size = len(set(reference_words())) + 1
    real = encode(" ".join(reference_words()[100:110]), size)
    distinct = len(set(real)) / len(real)
    assert share_of_real_phrases(real, size) == distinct > 0.8
    assert share_of_real_phrases([*real[:3], *real[:3], *real[:3]], size) < 0.5
    assert share_of_real_phrases([0] * 10, size) == 0.0
    backwards = real[::-1]
    assert share_of_real_phrases(backwards, size) < share_of_real_phrases(real, size)


def test_going_round_in_circles_does_not_pay() -> None:
    circle = encode(
        "the class of the value of the class is an object is an exception is an attribute is an instance", 1024
    )
    said = encode("for the value of a class object this method should be used in an instance of the built", 1024)
    assert share_of_real_phrases(circle, 1024) < 0.3
    assert share_of_real_phrases(said, 1024) > 0.4
