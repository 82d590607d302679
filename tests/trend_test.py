#!/usr/bin/env python3
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from trend import t_quantile, trend  # noqa: E402


class TrendTest(unittest.TestCase):
    def test_quantiles_are_those_of_tables(self):
        for degrees, expected in ((4, 2.776), (10, 2.228), (30, 2.042), (120, 1.980)):
            self.assertAlmostEqual(t_quantile(degrees), expected, delta=0.02 * expected)

    def test_a_line_is_found_exactly(self):
        line = trend([0, 1, 2, 3], [10, 12, 14, 16])
        self.assertAlmostEqual(line.growth, 6)
        self.assertAlmostEqual(line.least, 6)
        self.assertFalse(line.within_noise(0.02))
        self.assertTrue(line.within_noise(0.5))

    def test_the_interval_has_the_truth_in_95_of_100(self):
        rng, times = random.Random(7), list(range(40))
        found = 0
        for _ in range(1000):
            line = trend(times, [100 + 0.1 * time + rng.gauss(0, 3) for time in times])
            found += line.least <= 3.9 <= line.most
        self.assertAlmostEqual(found / 1000, 0.95, delta=0.02)

    def test_noise_is_no_growth_and_a_leak_is(self):
        rng, times = random.Random(7), list(range(40))
        noise = [1000 + rng.gauss(0, 10) for _ in times]
        self.assertTrue(trend(times, noise).within_noise(0.02))
        self.assertFalse(trend(times, [value + 2 * time for time, value in zip(times, noise)]).within_noise(0.02))

    def test_two_samples_are_too_few(self):
        with self.assertRaises(ValueError):
            trend([0, 1], [1, 2])


if __name__ == "__main__":
    unittest.main()
