//! What may be sent again, how often, and after how long.
//!
//! Leaves to `client.rs` when the time for the whole call is over.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use stripeset_proto::ErrorKind;

use crate::Error;

/// How often and how soon a failed call is tried again.
///
/// Only what may be repeated is: reads always; a put or delete when it certainly was not carried out, or when
/// repeating it changes nothing. The delay doubles from [`backoff_first`](Self::backoff_first) up to
/// [`backoff_max`](Self::backoff_max), of which a random half is taken off, and is never less than the server asks for.
///
/// ```
/// use std::time::Duration;
/// use stripeset_client::{Client, RetryPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
/// let patient = RetryPolicy { attempts_max: 20, backoff_max: Duration::from_secs(10), ..RetryPolicy::default() };
/// let client = Client::builder(cluster.endpoint()).retry(patient).connect().await?;
/// # client.put_bytes("a", "1").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; 1 and 0 never try again. 6 by default. A read that has moved forward
    /// starts counting anew.
    pub attempts_max: u32,
    /// Delay before the second attempt. 100 ms by default.
    pub backoff_first: Duration,
    /// Longest delay of our own choice. 5 s by default.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            attempts_max: 6,
            backoff_first: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// Every call is sent once.
    ///
    /// ```
    /// assert_eq!(stripeset_client::RetryPolicy::never().attempts_max, 1);
    /// ```
    pub fn never() -> Self {
        RetryPolicy { attempts_max: 1, ..RetryPolicy::default() }
    }

    /// How long to wait after `attempts` attempts, the last of which ended with `error`; `None` to give up.
    pub(crate) fn delay(&self, repeat: Repeat, attempts: u32, error: &Error) -> Option<Duration> {
        if attempts >= self.attempts_max || !repeat.after(error.kind()) {
            return None;
        }
        let doubled = self.backoff_first.saturating_mul(1u32.checked_shl(attempts - 1).unwrap_or(u32::MAX));
        let backoff = doubled.min(self.backoff_max);
        let jittered = backoff / 2 + (backoff / 2).mul_f64(random_fraction());
        Some(jittered.max(error.retry_after().unwrap_or_default()))
    }
}

/// When a call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Whenever that may help: it does no harm to carry it out twice.
    Always,
    /// Only if it certainly was not carried out: it never left, or the server refused it.
    Refused,
    /// Whatever the kind: bytes were damaged on their way, and are asked for again.
    Damaged,
}

impl Repeat {
    fn after(self, kind: ErrorKind) -> bool {
        match self {
            // A deadline that has passed is not made longer by trying again.
            Repeat::Always => kind.retry_helps() && kind != ErrorKind::DeadlineExceeded,
            Repeat::Refused => matches!(kind, ErrorKind::Busy | ErrorKind::Unavailable),
            Repeat::Damaged => true,
        }
    }
}

/// A number from 0 to 1 that clients which failed together do not share.
fn random_fraction() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Error {
        Error::new(ErrorKind::Unavailable, "x")
    }

    #[test]
    fn the_delay_doubles_up_to_its_limit() {
        let policy = RetryPolicy { attempts_max: 100, ..RetryPolicy::default() };
        for (attempts, millis) in [(1, 100), (2, 200), (3, 400), (7, 5000), (40, 5000), (99, 5000)] {
            let delay = policy.delay(Repeat::Always, attempts, &unavailable()).unwrap();
            let most = Duration::from_millis(millis);
            assert!((most / 2..=most).contains(&delay), "{attempts} attempts: {delay:?}");
        }
        assert_eq!(policy.delay(Repeat::Always, 100, &unavailable()), None);
        assert_eq!(RetryPolicy::never().delay(Repeat::Always, 1, &unavailable()), None);
    }

    #[test]
    fn the_server_may_ask_for_more() {
        let busy = Error::from_status(stripeset_proto::Error::busy("x", Duration::from_secs(60)).into(), "");
        assert_eq!(RetryPolicy::default().delay(Repeat::Refused, 1, &busy), Some(Duration::from_secs(60)));
    }

    #[test]
    fn what_may_have_been_carried_out_is_repeated_only_where_that_is_harmless() {
        let policy = RetryPolicy::default();
        let unknown = Error::new(ErrorKind::Unknown, "x");
        assert!(policy.delay(Repeat::Always, 1, &unknown).is_some());
        assert!(policy.delay(Repeat::Refused, 1, &unknown).is_none());
        for kind in [ErrorKind::NotFound, ErrorKind::DeadlineExceeded, ErrorKind::DataLoss, ErrorKind::Full] {
            assert!(policy.delay(Repeat::Always, 1, &Error::new(kind, "x")).is_none(), "{kind:?}");
        }
    }
}
