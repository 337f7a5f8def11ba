//! Whether a worker's memory is worth asking.
//!
//! Traffic among more than it has room for finds nothing there: after a window of misses it is
//! passed by for a while.

/// One memory's account.
#[derive(Debug, Default)]
pub(crate) struct Worth {
    hits: u64,
    misses: u64,
    /// `hits` when this window began, and the misses since then.
    window: (u64, u64),
    /// So many times it is still not to be asked.
    bypassed: u32,
}

impl Worth {
    /// Misses in a window. It is judged by the hits between them.
    pub(crate) const WINDOW: u64 = 32;
    /// With fewer hits than this for each miss, misses are what frames cost...
    pub(crate) const WORTHWHILE: u64 = 4;
    /// ...and so many frames pass before that is tried again.
    pub(crate) const BYPASSED: u32 = 2048;

    /// Whether it is not to be asked this time. Counts as a miss then.
    #[inline(always)]
    pub(crate) fn passes_by(&mut self) -> bool {
        if self.bypassed == 0 {
            return false;
        }
        self.bypassed -= 1;
        self.misses += 1;
        true
    }

    /// It has changed: what was found out about it counts no more.
    pub(crate) fn begin_again(&mut self) {
        (self.bypassed, self.window) = (0, (self.hits, 0));
    }

    /// Whether it is not to be asked now.
    #[inline]
    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypassed != 0
    }

    #[inline(always)]
    pub(crate) fn hit(&mut self, times: u64) {
        self.hits += times;
    }

    /// Counts a miss of something that was known before a change: it will be found from now on.
    #[inline]
    pub(crate) fn renewed(&mut self) {
        self.misses += 1;
    }

    /// Counts a miss, and judges at the end of a window; true: it was not worth it.
    #[inline]
    pub(crate) fn missed(&mut self) -> bool {
        self.misses += 1;
        self.window.1 += 1;
        if self.window.1 < Self::WINDOW {
            return false;
        }
        let doubted = self.hits - self.window.0 < Self::WINDOW * Self::WORTHWHILE;
        if doubted {
            self.bypassed = Self::BYPASSED;
        }
        self.window = (self.hits, 0);
        doubted
    }

    /// Since the beginning.
    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}
