//! What the unit tests of several modules share.

/// Says that a test could not run here because the machine lacks `capability`.
///
/// With the capability's name in `SUPERHUE_REQUIRE` (comma-separated) that is a failure.
pub(crate) fn skip(capability: &str, reason: &str) {
    let required = std::env::var("SUPERHUE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == capability),
        "{capability} is required but missing: {reason}"
    );
    println!("SKIPPED {capability}: {reason}");
}
