//! What the targets share: a decoder that takes more memory than it may is a failure.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The system's allocator, with a count of what is held and of the most that was.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise; the block came from `alloc` above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Runs a decoder, and fails if it took more memory than it may.
pub fn bounded(input: &[u8], decode: fn(&[u8]) -> bool) {
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    decode(input);
    let taken = MOST.load(Relaxed) - before;
    let most = stripeset_agent::fuzzing::memory_max(input);
    assert!(taken <= most, "{taken} bytes of memory for {} bytes of input, {most} at most", input.len());
}
