//! How much of its core a CPU has: two hardware threads of a core share what issues instructions.

#![expect(unsafe_code)]
// UNSAFETY: instructions that the compiler would otherwise do away with.

use crate::clock::ticks;

/// Turns of each loop: some microseconds.
const TURNS: u32 = 4_000;

/// How long instructions take that wait for nothing, divided by how long some take each of which waits
/// for the one before. The second time depends on the frequency only, the first one also on
/// what the core's other thread does: the quotient is least while that one rests, and up to twice as
/// large while it does not. Compare only values of this machine. Takes about 10 µs.
#[must_use]
pub fn pressure() -> f64 {
    let start = ticks();
    independent();
    let middle = ticks();
    dependent();
    let end = ticks();
    middle.wrapping_sub(start) as f64 / end.wrapping_sub(middle).max(1) as f64
}

/// Two additions on each of six registers in each turn.
#[inline(never)]
fn independent() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: only registers that are said to change do.
    unsafe {
        std::arch::asm!(
            "2:",
            "add {a}, 1", "add {b}, 1", "add {c}, 1", "add {d}, 1", "add {e}, 1", "add {f}, 1",
            "add {a}, 1", "add {b}, 1", "add {c}, 1", "add {d}, 1", "add {e}, 1", "add {f}, 1",
            "dec {n:e}",
            "jnz 2b",
            a = inout(reg) 0_u64 => _, b = inout(reg) 0_u64 => _, c = inout(reg) 0_u64 => _,
            d = inout(reg) 0_u64 => _, e = inout(reg) 0_u64 => _, f = inout(reg) 0_u64 => _,
            n = inout(reg) TURNS => _,
            options(nomem, nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut each = [0_u64; 6];
        for _ in 0..TURNS {
            each = each.map(|value| std::hint::black_box(value + 1));
        }
    }
}

/// Two multiplications in each turn, one after the other.
#[inline(never)]
fn dependent() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "2:",
            "imul {a}, {a}",
            "imul {a}, {a}",
            "dec {n:e}",
            "jnz 2b",
            a = inout(reg) 3_u64 => _,
            n = inout(reg) TURNS => _,
            options(nomem, nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut value = 3_u64;
        for _ in 0..2 * TURNS {
            value = std::hint::black_box(value).wrapping_mul(3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_quotient_of_times() {
        for told in (0..20).map(|_| pressure()) {
            assert!(told.is_finite() && told > 0.0, "{told}");
        }
    }
}
