#![allow(unused_macros)]
// The completion token of an assert program in Rust: written when the test's main has returned, and only then.
// That main was renamed; ours calls it, and is itself called by a main that the linker wraps. A panic makes the wrapped
// main return 101. Job on descriptor 3, result on 4.
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::os::unix::io::FromRawFd;
use std::process::Termination;
use std::sync::atomic::{AtomicBool, Ordering};

// The test's macros are these, whatever the program has called so.
macro_rules! assert { ($($all:tt)*) => { ::core::assert!($($all)*) } }
macro_rules! assert_eq { ($($all:tt)*) => { ::core::assert_eq!($($all)*) } }
macro_rules! assert_ne { ($($all:tt)*) => { ::core::assert_ne!($($all)*) } }
macro_rules! debug_assert { ($($all:tt)*) => { ::core::assert!($($all)*) } }
macro_rules! debug_assert_eq { ($($all:tt)*) => { ::core::assert_eq!($($all)*) } }
macro_rules! debug_assert_ne { ($($all:tt)*) => { ::core::assert_ne!($($all)*) } }
macro_rules! matches { ($($all:tt)*) => { ::core::matches!($($all)*) } }
macro_rules! panic { ($($all:tt)*) => { ::std::panic!($($all)*) } }
macro_rules! unreachable { ($($all:tt)*) => { ::std::unreachable!($($all)*) } }

pub type Ended = std::process::ExitCode;
static ENDED: AtomicBool = AtomicBool::new(false);

pub fn ended<T: Termination>(told: T) -> Ended {
    ENDED.store(true, Ordering::SeqCst);
    told.report()
}

extern "C" {
    fn __real_main(count: i32, arguments: *const *const u8) -> i32;
}

#[no_mangle]
pub extern "C" fn __wrap_main(count: i32, arguments: *const *const u8) -> i32 {
    let code = unsafe { __real_main(count, arguments) };
    if code == 0 && ENDED.load(Ordering::SeqCst) {
        let job = ManuallyDrop::new(unsafe { File::from_raw_fd(3) });
        let mut result = ManuallyDrop::new(unsafe { File::from_raw_fd(4) });
        let mut frame = [0u8; 32];
        let size = job.metadata().map(|data| data.len()).unwrap_or(0);
        if size >= 32 && job.read_exact_at(&mut frame, size - 32).is_ok() {
            let mut frame = frame.to_vec();
            frame.extend_from_slice(b"{\"ok\": true, \"values\": []}");
            let _ = result.write_all(&frame); // without it the run counts as not finished
        }
    }
    code
}
