//! Messages between applications and `superhue track`: a parsed message is the same when it is sent again.
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
