//! What is known of an object without its bytes, and the calls that need no stream: stat and delete.

use std::time::{Duration, SystemTime};

use stripeset_proto::v1;

use crate::{Client, Error, retry::Repeat};

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Name: UTF-8, 1 to 1024 bytes, without NUL.
    pub name: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// crc32c of all bytes.
    pub crc32c: u32,
    /// When it was last put, to the millisecond, by the coordinator's clock.
    pub modified: SystemTime,
    /// Bytes of the array's logical space that it takes, a multiple of 4096.
    pub allocated_bytes: u64,
    /// Changes with every put of the name.
    pub generation: u64,
}

impl From<v1::ObjectInfo> for ObjectInfo {
    fn from(wire: v1::ObjectInfo) -> Self {
        let distance = Duration::from_millis(wire.modified_unix_millis.unsigned_abs());
        let modified = if wire.modified_unix_millis < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(distance)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(distance)
        };
        ObjectInfo {
            name: wire.name,
            size_bytes: wire.size_bytes,
            crc32c: wire.crc32c,
            // A time that the system cannot hold is no reason to fail a call.
            modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
            allocated_bytes: wire.allocated_bytes,
            generation: wire.generation,
        }
    }
}

/// The object in an answer that always has one.
pub(crate) fn object(field: Option<v1::ObjectInfo>) -> Result<ObjectInfo, Error> {
    field.map(ObjectInfo::from).ok_or_else(|| Error::incomplete("object"))
}

impl Client {
    /// What is known of object `name`.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", "12345").await?;
    /// assert_eq!(client.stat("a").await?.size_bytes, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stat(&self, name: &str) -> Result<ObjectInfo, Error> {
        let message = v1::StatObjectRequest { name: name.to_owned() };
        let send = |request| {
            let mut service = self.objects();
            async move { service.stat_object(request).await }
        };
        object(self.call(Repeat::Always, message, send).await?.object)
    }

    /// Removes object `name` and returns it as it was. When this returns, the removal is durable.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Unknown` if the connection broke and it may or may not have been removed.
    ///
    /// ```
    /// # use stripeset_client::{Client, ErrorKind};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", "12345").await?;
    /// client.delete("a").await?;
    /// assert_eq!(client.stat("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delete(&self, name: &str) -> Result<ObjectInfo, Error> {
        let message = v1::DeleteObjectRequest { name: name.to_owned() };
        let send = |request| {
            let mut service = self.objects();
            async move { service.delete_object(request).await }
        };
        // A second delete would say NotFound of what the first one did.
        object(self.call(Repeat::Refused, message, send).await?.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_beyond_all_clocks_do_not_fail() {
        let at = |modified_unix_millis| {
            ObjectInfo::from(v1::ObjectInfo { modified_unix_millis, ..Default::default() })
        };
        assert_eq!(at(1500).modified, SystemTime::UNIX_EPOCH + Duration::from_millis(1500));
        assert_eq!(at(-1500).modified, SystemTime::UNIX_EPOCH - Duration::from_millis(1500));
        at(i64::MIN);
        at(i64::MAX);
    }
}
