//! See `stripeset_agent::fuzzing`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    stripeset_fuzz::bounded(input, stripeset_agent::fuzzing::directory);
});
