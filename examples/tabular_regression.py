"""Predict a number from a table with numbers, categories and missing values.

python examples/tabular_regression.py

The table is made here, in the manner of the California housing data: 3,000 districts with incomes,
ages of houses, rooms, the distance to the sea and the kind of place; every tenth number is missing.
The price follows a formula that is not linear, plus noise that nothing can predict.

Columns become features without a word: means in place of missing numbers, mean 0 and standard
deviation 1, a column for each category. All of it is stored in the exported model, so that new rows
are given as they are; `onward run MODEL rows.csv` does the same on the command line.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import onward
from onward.runner.data.open_data import open_data
from onward.runner.plan.preprocessing import read_preprocessing

PLACES = ("city", "coast", "valley", "mountains")
COLUMNS = ("income", "age", "rooms", "distance", "place", "price")
NOISE = 0.3  # standard deviation, in 100,000 dollars: the prices' own is 0.9


def write_districts(path: Path, count: int, seed: int) -> None:
    """Write random districts as CSV; missing numbers are empty fields."""
    rng = np.random.default_rng(seed)
    numbers = {
        "income": rng.gamma(4, 1, count),  # in 10,000 dollars
        "age": rng.integers(1, 52, count).astype(float),
        "rooms": rng.normal(5.5, 1.2, count).clip(2),
        "distance": rng.exponential(30, count),  # in km, to the sea
    }
    place = rng.integers(0, len(PLACES), count)
    near = np.exp(-numbers["distance"] / 20) * np.array([1, 2, 0.3, 0.5])[place]
    price = 0.35 * numbers["income"] + near + 0.15 * (numbers["rooms"] - 5.5)
    price += 0.4 * (numbers["age"] > 40) * (place == 0)  # old houses are dear only in cities
    price += rng.normal(0, NOISE, count)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in range(count):
            shown = ["" if rng.random() < 0.1 else f"{each[row]:.2f}" for each in numbers.values()]
            writer.writerow([*shown, PLACES[place[row]], f"{price[row]:.3f}"])


def main() -> None:
    write_districts(Path("districts.csv"), 3000, seed=0)
    write_districts(Path("new.csv"), 500, seed=1)

    network = onward.new_model("mlp", features=8, hidden=(64, 64), classes=1)
    run = onward.train(
        network, "districts.csv", target="price", epochs=12, batch_size=64, learning_rate=3e-3
    )
    print(f"R2 on held-out districts: {run.metrics['val_r2']:.3f} after {run.steps} steps")

    # -- new rows, with only what is stored in the model
    preprocessing = read_preprocessing(onward.load(run.model))
    rows = open_data("new.csv")
    columns = rows.read(np.arange(len(rows)))
    [prices] = onward.InferenceSession(run.model).run(
        None, preprocessing.feeds(columns, target=False)
    )
    error = np.abs(prices[:, 0] - columns["price"]).mean()
    print(f"new districts: wrong by {error:.2f} on average (noise alone: {NOISE * 0.8:.2f})")
    for row in range(3):
        given = ", ".join(f"{name} {columns[name][row]}" for name in COLUMNS[:-1])
        print(f"  {given}: {prices[row, 0]:.2f}, in truth {columns['price'][row]:.2f}")


if __name__ == "__main__":
    main()
