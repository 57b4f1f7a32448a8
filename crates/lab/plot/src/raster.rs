//! Renders a picture as PNG, with resvg and a font that is part of the program.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};

/// Pixels of the PNG for each pixel of the SVG, the first that fits: two are sharp on today's screens.
const SCALES: [f32; 2] = [2.0, 1.0];
/// Largest size of a picture, in pixels of the PNG on each side.
const MAX_PIXELS_PER_SIDE: u32 = 16_384;

const REGULAR: &[u8] = include_bytes!("../font/DejaVuSans-subset.ttf");
const BOLD: &[u8] = include_bytes!("../font/DejaVuSans-Bold-subset.ttf");

/// Reason why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum RasterError {
    /// The text is not SVG.
    #[error("cannot draw the picture: {0}")]
    Svg(String),
    /// The picture has no size, or is too large.
    #[error(
        "a PNG of {0} x {1} pixels has no size, or one above {MAX_PIXELS_PER_SIDE} pixels: draw it as SVG, which has no limit"
    )]
    Size(u32, u32),
    /// The picture could not be written as PNG.
    #[error("cannot write the picture as PNG: {0}")]
    Png(String),
}

/// Draws an SVG of this crate as PNG, twice as wide and high where that is not too large: [`to_svg`](crate::to_svg) gives 2400 pixels.
///
/// # Errors
/// Returns a [`RasterError`] if the text is not a usable SVG.
pub fn to_png(svg: &str) -> Result<Vec<u8>, RasterError> {
    let mut fonts = Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(BOLD.to_vec());
    let options = Options {
        font_family: "DejaVu Sans".to_owned(),
        fontdb: Arc::new(fonts),
        ..Options::default()
    };
    let tree =
        Tree::from_str(svg, &options).map_err(|error| RasterError::Svg(error.to_string()))?;
    let size = tree.size().to_int_size();
    let scaled = |scale: f32| {
        let size = size.scale_by(scale)?;
        let fits = size.width().max(size.height()) <= MAX_PIXELS_PER_SIDE;
        let pixels = fits.then(|| Pixmap::new(size.width(), size.height()));
        Some((scale, pixels.flatten()?))
    };
    let (scale, mut pixels) = (SCALES.into_iter().find_map(scaled))
        .ok_or_else(|| RasterError::Size(size.width(), size.height()))?;
    let transform = Transform::from_scale(scale, scale);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels
        .encode_png()
        .map_err(|error| RasterError::Png(error.to_string()))
}
