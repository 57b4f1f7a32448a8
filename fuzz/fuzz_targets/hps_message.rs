//! Messages between applications and `superhue track`: what is understood is the same when said again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_client::protocol::{Answer, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(request.packet().bytes(), bytes);
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(Answer::parse(answer.packet().bytes()), Ok(answer));
    }
});
