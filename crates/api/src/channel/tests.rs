use super::*;

#[test]
fn prefixes_have_one_form() {
    for good in ["0.0.0.0/0", "10.1.0.0/16", "10.1.2.3/32", "::/0", "2001:db8::/32", "fe80::1/128"]
    {
        let prefix: Prefix = good.parse().unwrap();
        assert_eq!(prefix.to_string(), good);
        let json = serde_json::to_string(&prefix).unwrap();
        assert_eq!(serde_json::from_str::<Prefix>(&json).unwrap(), prefix);
    }
    for bad in
        ["", "10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "::/129", "::1/64", "x/8", "10.0.0.0/-1"]
    {
        assert!(bad.parse::<Prefix>().is_err(), "{bad}");
    }
    let host = Prefix::new("192.0.2.129".parse().unwrap(), 25).unwrap();
    assert_eq!(host.to_string(), "192.0.2.128/25");
}

#[test]
fn a_selector_is_a_prefix_or_an_address_and_a_machine() {
    for good in [
        "10.1.0.0/16",
        "10.1.2.3/32",
        "10.1.2.3/32 from 02:00:5e:10:00:01",
        "fe80::1/128 from 02:00:5e:10:00:01",
    ] {
        let selector: Selector = good.parse().unwrap();
        assert_eq!(selector.to_string(), good);
        assert_eq!(selector.from().is_some(), good.contains("from"));
        let json = serde_json::to_string(&selector).unwrap();
        assert_eq!(serde_json::from_str::<Selector>(&json).unwrap(), selector);
    }
    for bad in [
        "10.1.2.3/32 from",
        "10.1.2.0/24 from 02:00:5e:10:00:01",
        "10.1.2.3 from 02:00:5e:10:00:01",
        "::/0 from 02:00:5e:10:00:01",
        "10.1.2.3/32 from 02:00:5e:10:00",
        "10.1.2.3/32  from 02:00:5e:10:00:01",
    ] {
        assert!(bad.parse::<Selector>().is_err(), "{bad}");
    }
}

#[test]
fn a_request_is_a_line_that_is_read_again() {
    let routes = Routes {
        set: vec![Via { nexthop: 3, prefixes: vec!["10.0.0.0/8".parse().unwrap()] }],
        del: vec!["2001:db8::/32".parse().unwrap()],
    };
    let line = Request::line(7, &routes).unwrap();
    assert_eq!(
        String::from_utf8(line.clone()).unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"router.routes\",\"params\":{\"set\":[{\"nexthop\":3,\
         \"prefixes\":[\"10.0.0.0/8\"]}],\"del\":[\"2001:db8::/32\"]}}\n"
    );
    let request = Request::parse(&line).unwrap();
    assert_eq!((request.id, request.method), (7, Routes::NAME));
    assert_eq!(request.params::<Routes>().unwrap(), routes);

    let bare = Request::parse(br#"{"jsonrpc":"2.0","id":1,"method":"router.renew"}"#).unwrap();
    assert_eq!(bare.params::<Renew>().unwrap(), Renew {});
}

#[test]
fn what_is_not_a_request_is_refused() {
    for bad in [
        &b""[..],
        b"{}",
        b"[]",
        br#"{"jsonrpc":"1.0","id":1,"method":"hello"}"#,
        br#"{"jsonrpc":"2.0","method":"hello"}"#,
        br#"{"jsonrpc":"2.0","id":-1,"method":"hello"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"hello","more":1}"#,
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
    ] {
        assert!(Request::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn answers_say_result_or_error() {
    let done = Answer { jsonrpc: Version::V2, id: Some(1), outcome: Outcome::Result(Done {}) };
    let line = done.line().unwrap();
    assert_eq!(line, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
    assert_eq!(serde_json::from_slice::<Answer<Done>>(&line).unwrap(), done);
    let refused: Answer<Done> = Answer {
        jsonrpc: Version::V2,
        id: None,
        outcome: Outcome::Error(Failed::new(Refusal::NotYourPort, "no")),
    };
    let line = refused.line().unwrap();
    assert_eq!(
        line,
        b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32007,\"message\":\"no\",\"data\":\"not-your-port\"}}\n"
    );
    assert_eq!(serde_json::from_slice::<Answer<Done>>(&line).unwrap(), refused);
}

#[test]
fn refusals_have_names_and_codes_of_their_own() {
    let mut codes = std::collections::HashSet::new();
    for refusal in Refusal::ALL {
        assert_eq!(serde_json::to_value(refusal).unwrap(), refusal.name());
        let shared = matches!(refusal, Refusal::Malformed | Refusal::TooLong);
        assert!(codes.insert(refusal.code()) || shared, "{}", refusal.name());
    }
}
