//! Pattern for a time without samples: the last sample, pale and hatched, so that no reader takes it for a measurement.

use crate::svg::Svg;

/// Defines the pattern, once in each document.
pub(super) fn define(svg: &mut Svg) {
    svg.raw(format_args!(
        "<defs><pattern id=\"pause\" width=\"8\" height=\"8\" \
         patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
         <rect width=\"8\" height=\"8\" fill=\"#ffffff\" fill-opacity=\"0.4\"/>\
         <rect width=\"2\" height=\"8\" fill=\"#ffffff\" fill-opacity=\"0.75\"/>\
         </pattern></defs>\n"
    ));
}

/// Covers an area with the pattern.
pub(super) fn draw(svg: &mut Svg, x: i32, y: i32, width: i32, height: i32) {
    svg.rectangle(x, y, width, height, "url(#pause)");
}
