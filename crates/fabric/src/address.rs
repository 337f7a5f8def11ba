//! Addresses as the library has them: `struct sockaddr_in` and `sockaddr_in6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const INET: u16 = 2;
const INET6: u16 = 10;

/// A socket address in bytes.
pub(crate) fn to_bytes(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend(INET.to_ne_bytes());
            bytes.extend(v4.port().to_be_bytes());
            bytes.extend(v4.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend(INET6.to_ne_bytes());
            bytes.extend(v6.port().to_be_bytes());
            bytes.extend(v6.flowinfo().to_be_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// The socket address in some bytes, if it is of the Internet.
pub(crate) fn of_bytes(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match u16::from_ne_bytes(*family) {
        INET => Some((Ipv4Addr::from(*rest.first_chunk::<4>()?), port).into()),
        INET6 => {
            let (_, rest) = rest.split_first_chunk::<4>()?;
            let ip: IpAddr = Ipv6Addr::from(*rest.first_chunk::<16>()?).into();
            Some((ip, port).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["192.0.2.1:7000", "[2001:db8::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = to_bytes(address);
            assert_eq!(bytes.len(), if address.is_ipv4() { 16 } else { 28 });
            assert_eq!(of_bytes(&bytes), Some(address));
        }
        assert_eq!(of_bytes(&[]), None);
        assert_eq!(of_bytes(&to_bytes("192.0.2.1:7000".parse().unwrap())[..7]), None);
        assert_eq!(of_bytes(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
