from pathlib import Path

from draw_columns import draw_columns
from table_loop import main


def test_a_loop_over_new_older_and_supervised_rows_learns() -> None:
    means = main(steps=12)
    assert sum(means[-3:]) / 3 > 0.7
    assert means[0] < 0.4


def test_the_picture_of_columns_is_what_its_script_draws() -> None:
    picture = Path(__file__).parents[2] / "docs" / "pictures" / "columns.svg"
    assert picture.read_text() == draw_columns()
