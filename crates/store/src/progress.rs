//! How far a long operation is, and whether it goes on.

use std::ops::ControlFlow;

use crate::StoreError;

/// How far a long operation is. Both counts are of bytes; `done` never falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were looked at, holes included.
    pub done: u64,
    /// Bytes there are to look at.
    pub total: u64,
}

/// Whom to tell. `Break` cancels the operation.
pub(crate) struct Reporter<'a> {
    progress: Progress,
    tell: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(total: u64, tell: &'a mut dyn FnMut(Progress) -> ControlFlow<()>) -> Self {
        Self { progress: Progress { done: 0, total }, tell }
    }

    /// `bytes` more are done.
    pub(crate) fn advance(&mut self, bytes: u64) -> Result<(), StoreError> {
        let Progress { done, total } = self.progress;
        self.progress.done = done.saturating_add(bytes).min(total);
        match (self.tell)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(StoreError::Cancelled),
        }
    }
}
