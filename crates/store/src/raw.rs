//! A raw image that is open: a file for the engine's own requests.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::image::Hold;
use crate::{Alignment, StoreError};

/// A raw image that is open. All methods may be called by any thread.
#[derive(Debug)]
pub struct Raw {
    file: Arc<File>,
    size: AtomicU64,
    alignment: Alignment,
    /// `None` if this image is read-only.
    hold: Option<Hold>,
}

impl Raw {
    pub(crate) fn new(
        file: Arc<File>,
        size: u64,
        alignment: Alignment,
        hold: Option<Hold>,
    ) -> Self {
        Self { file, size: size.into(), alignment, hold }
    }

    /// The file, locked: byte N of the disk is byte N of it. Who keeps it keeps the lock.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What requests to the file must be aligned to.
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Bytes of the disk. The file may be longer, never shorter.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether it was opened for reading only.
    pub fn read_only(&self) -> bool {
        self.hold.is_none()
    }

    /// Makes the disk `new` bytes long. What is added reads as zeroes.
    ///
    /// The caller sees to it that no request behind the new end is in flight.
    ///
    /// # Errors
    /// [`StoreError::BadSize`], also if it is no multiple of what requests must be aligned to;
    /// [`StoreError::Io`]. The size is then what [`size`](Self::size) says.
    pub fn resize(&self, new: u64) -> Result<(), StoreError> {
        let Some(hold) = &self.hold else {
            let source = io::ErrorKind::ReadOnlyFilesystem.into();
            return Err(StoreError::Io { what: "cannot resize".into(), source });
        };
        if !new.is_multiple_of(u64::from(self.alignment.offset)) {
            return Err(StoreError::BadSize(new));
        }
        hold.resize(self.size(), new, || {
            self.file.set_len(new)?;
            self.size.store(new, Ordering::Release);
            self.file.sync_data()
        })
    }
}

impl Drop for Raw {
    /// Waits until what was written lasts.
    fn drop(&mut self) {
        if let Some(hold) = &self.hold {
            hold.release(Ok(()));
        }
    }
}
