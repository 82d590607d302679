"""Whether what was measured now and then has grown: a line through the samples (least squares), and how sure its slope is."""
import dataclasses
import math
import statistics

Z = statistics.NormalDist().inv_cdf(0.975)


def t_quantile(degrees):
    """The 97.5th percentile of Student's distribution (Abramowitz and Stegun 26.7.5); within 2 % from 4 degrees on."""
    z = Z
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


@dataclasses.dataclass
class Trend:
    mean: float
    growth: float  # along the line, from the first sample to the last
    least: float  # and at both ends of what the growth is with 95 % confidence
    most: float

    def within_noise(self, tolerance):
        """Not surely above 0, or above but less than `tolerance` of the mean."""
        return self.least <= 0 or self.growth <= tolerance * abs(self.mean)


def trend(times, values):
    """REQUIRES: three samples at least, at different times."""
    if len(times) < 3:
        raise ValueError("a trend needs three samples")
    line = statistics.linear_regression(times, values)
    span, middle = max(times) - min(times), statistics.fmean(times)
    residuals = sum((value - line.intercept - line.slope * time) ** 2 for time, value in zip(times, values))
    degrees = len(times) - 2
    error = math.sqrt(residuals / degrees / sum((time - middle) ** 2 for time in times))
    margin = t_quantile(degrees) * error * span
    growth = line.slope * span
    return Trend(statistics.fmean(values), growth, growth - margin, growth + margin)
