"""Pictures of panels one below the other, as SVG: what the scripts that measure over time draw.

A scale begins at 0 if no other beginning is given, and is labelled at round numbers.
"""

from itertools import takewhile
from math import ceil, floor, log10
from statistics import median

BLUE, RED = "#4477aa", "#cc6677"
WIDTH = 640
# Around a panel: its title above, its scales on the left and below, labels of curves on the right.
LEFT, RIGHT, ABOVE, BELOW = 60, 70, 40, 28
MARGIN = 6


def round_steps(most, least=0):
    """The multiples of 1, 2 or 5 times a power of ten from `least` to `most`: three to six numbers in all."""
    power = 10 ** int(log10(most - least) // 1)
    step = next(s for s in (power / 5, power / 2, power, power * 2) if (most - least) / s < 6)
    first = ceil(least / step)
    return list(takewhile(lambda value: value <= most, (number * step for number in range(first, first + 7))))


def log_steps(most, least):
    """The powers of ten from `least` to `most`; where these are few, 2 and 5 times each as well."""
    powers = range(floor(log10(least)), ceil(log10(most)))
    factors = (1,) if len(powers) > 3 else (1, 2, 5)
    return [step for power in powers for factor in factors if least <= (step := factor * 10**power) <= most]


class Panel:
    """One diagram. `right` and `most` are the values at the ends of its scales, `least` is that at the beginning of the vertical one,
    which may be logarithmic."""

    def __init__(self, top, height, title, right, most, least=0, log=False):
        self.top, self.height, self.right = top + ABOVE, height, right
        self.least, self.scale = least, log10 if log else float
        # Room above the highest point.
        self.most = least + ((most or 1) - least) * 1.08
        self.out = [
            f'<text x="{LEFT}" y="{self.top - 12}" font-weight="bold">{title}</text>',
            f'<path d="M{LEFT} {self.top}v{height}h{WIDTH}" fill="none" stroke="#888"/>',
        ]
        for value in (log_steps if log else round_steps)(self.most, least):
            y = self.down(value)
            if value > least:
                self.out.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#e4e4e4"/>')
            self.text(LEFT - 6, y + 4, f"{value:g}", "end")

    def across(self, at):
        """Where a value of the horizontal scale lies."""
        return LEFT + WIDTH * at / self.right

    def down(self, value):
        """Where a value of the vertical scale lies."""
        low, at, high = (self.scale(each) for each in (self.least, value, self.most))
        return self.top + self.height * (1 - (at - low) / (high - low))

    def text(self, x, y, said, anchor="start", colour="#000"):
        """A label."""
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{said}</text>')

    def marks(self, values, unit):
        """Labels of the horizontal scale."""
        for value in values:
            self.text(self.across(value), self.top + self.height + 17, f"{value} {unit}", "middle")

    def curve(self, points, colour, name=""):
        """A curve through points, with its name behind the last one."""
        path = " ".join(f"{self.across(at):.1f},{self.down(value):.1f}" for at, value in points)
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if points:
            at, value = points[-1]
            self.text(self.across(at) + 6, self.down(value) + 4, name, colour=colour)

    def level(self, value, name):
        """A dashed line across, with its name behind it."""
        y = self.down(value)
        self.out.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#666" stroke-dasharray="5 4"/>')
        self.text(LEFT + WIDTH + 6, y + 4, name, colour="#666")

    def bar(self, begin, end, value, colour):
        """A bar between two values of the horizontal scale."""
        x, y = self.across(begin), self.down(value)
        wide, tall = self.across(end) - x, self.top + self.height - y
        self.out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{colour}"/>')

    def dots(self, number, name, values, note=""):
        """Samples beside each other in a column, in their order, and a line at their median; below them its name, the median, a note."""
        middle, wide = self.across(number + 0.5), self.across(1) - self.across(0)
        apart = min(7, wide / 2 / max(1, len(values)))
        self.text(middle, self.top + self.height + 16, name, "middle")
        said = [f"{median(values):.4g}"] if values else []
        self.text(middle, self.top + self.height + 30, ", ".join(said + [note] * bool(note)), "middle", "#666")
        if values:
            x, y = middle - min(32, 0.3 * wide), self.down(median(values))
            self.out.append(f'<path d="M{x:.1f} {y:.1f}h{2 * (middle - x):.1f}" stroke="{RED}" stroke-width="2"/>')
        for place, value in enumerate(values):
            x = middle + (place - (len(values) - 1) / 2) * apart
            self.out.append(f'<circle cx="{x:.1f}" cy="{self.down(value):.1f}" r="3" fill="{BLUE}" fill-opacity="0.7"/>')


class Picture:
    """Panels of one height, below a heading (SVG text) if there is one."""

    def __init__(self, height, heading=""):
        self.height = height
        self.heading = [f'<text x="{LEFT}" y="22">{heading}</text>'] if heading else []
        self.panels = []

    def panel(self, title, right, most, **scale):
        """Another panel below those before."""
        self.panels.append(Panel(self.bottom(), self.height, title, right, most, **scale))
        return self.panels[-1]

    def bottom(self):
        """Where the next panel begins."""
        return MARGIN + 18 * len(self.heading) + (ABOVE + self.height + BELOW) * len(self.panels)

    def save(self, path):
        """Writes the picture to a file."""
        size = (LEFT + WIDTH + RIGHT, self.bottom() + MARGIN)
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{size[0]}" height="{size[1]}" fill="#fff"/>',
            *self.heading,
        ]
        for panel in self.panels:
            out += panel.out
        path.write_text("\n".join(out + ["</svg>", ""]), encoding="utf-8")


def forest(path, heading, rows, least, most):
    """Writes a forest plot: for each row (name, low, estimate, high, note) an interval with a dot in it, one below the other, on a scale of
    ratios from `least` to `most`. What reaches farther ends in an arrow; an end that is `None` lies nowhere."""
    left, wide, step = 130, 420, 20
    tall = step * len(rows)

    def across(value):
        return left + wide * log10(min(max(value, least), most) / least) / log10(most / least)

    out = [f'<text x="{MARGIN + 6}" y="22" font-weight="bold">{heading}</text>']
    for tick in (twentieth / 20 for twentieth in range(ceil(least * 20), floor(most * 20) + 1)):
        style = 'stroke="#444"' if tick == 1 else 'stroke="#e4e4e4"'
        out.append(f'<path d="M{across(tick):.1f} 36v{tall}" {style}/>')
        if round(tick * 20) % 2 == 0:
            out.append(f'<text x="{across(tick):.1f}" y="{tall + 52}" text-anchor="middle">{tick:g}</text>')
    for place, (name, low, estimate, high, note) in enumerate(rows):
        y = 36 + step * (place + 0.5)
        colour = BLUE if low and low >= 1 else RED if high and high <= 1 else "#777"
        begin, end = across(low or least), across(high or most)
        out.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{name}</text>')
        out.append(f'<path d="M{begin:.1f} {y}H{end:.1f}" stroke="{colour}" stroke-width="2"/>')
        for reaches, x, way in ((not low or low < least, begin, 7), (not high or high > most, end, -7)):
            if reaches:
                out.append(f'<path d="M{x + way:.1f} {y - 4}L{x:.1f} {y}L{x + way:.1f} {y + 4}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<circle cx="{across(estimate):.1f}" cy="{y}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{left + wide + 12}" y="{y + 4}" fill="#444">{note}</text>')
    size = (left + wide + 190, tall + 64)
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" font-size="12">'
            f'<rect width="{size[0]}" height="{size[1]}" fill="#fff"/>')
    path.write_text("\n".join([head, *out, "</svg>", ""]), encoding="utf-8")
