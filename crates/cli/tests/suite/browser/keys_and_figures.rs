//! Keys, live figures and their charts.

use super::SignedIn;
use fantoccini::key::Key;

#[tokio::test]
async fn a_key_is_looked_up_reset_granted_and_blocked() {
    let page = SignedIn::start().await;
    for expected in [200, 200, 200, 429] {
        assert_eq!(page.check("eve"), expected);
    }
    let chrome = &page.chrome;
    chrome.keys("/").await;
    chrome.wait("document.activeElement.name === 'value'").await;
    chrome.keys("eve").await;
    chrome.value("document.querySelector('select[name=kind]').value = 'user'").await;
    chrome.key(Key::Enter).await;
    chrome.wait_for_text("limited, passes again in").await;
    let gauge =
        "[...document.querySelectorAll('.gauge')].find((each) => each.textContent.startsWith('orders'))";
    assert_eq!(chrome.value(&format!("{gauge}.querySelectorAll('p')[1].textContent")).await, "0 of 3");

    chrome.click("button", "Reset").await;
    chrome.click("dialog button", "Reset").await;
    chrome.wait_for_text("start fresh.").await;
    chrome.wait_for_text("3 of 3").await;
    chrome.wait_for_text("within its limits").await;
    for expected in [200, 200, 200, 429] {
        assert_eq!(page.check("eve"), expected, "a fresh state");
    }

    chrome.click("button", "Grant…").await;
    chrome.fill("dialog input[type=number]", "2").await;
    chrome.fill("dialog label:last-of-type input", "for the migration").await;
    chrome.click("dialog button", "Grant").await;
    chrome.wait_for_text("2 of 2 extra tokens").await;
    for expected in [200, 200, 429] {
        assert_eq!(page.check("eve"), expected, "two extra tokens");
    }

    // What hurts asks for the name, and can be undone from Audit.
    chrome.click("button", "Block for…").await;
    chrome.fill("dialog label:nth-of-type(2) input", "abuse").await;
    assert_eq!(chrome.value("document.querySelector('dialog .main').disabled").await, true);
    chrome.fill("dialog input.mono", "eve").await;
    chrome.click("dialog button", "Block").await;
    chrome.wait_for_text("denied by the deny list").await;
    page.wait_for_revision(2);
    assert_eq!(page.check("eve"), 403);
    chrome.go("#/audit").await;
    chrome.click("button", "Undo").await;
    chrome.fill("dialog input", "r1").await;
    chrome.click("dialog button", "Roll back").await;
    chrome.wait_for_text("the text of revision 1").await;
    page.wait_for_revision(3);
    assert_eq!(page.check("eve"), 429);
    page.assert_clean_console();
}

/// The audit log has only the start of an API key.
#[tokio::test]
async fn a_grant_to_an_api_key_is_undone_from_audit() {
    let page = SignedIn::start().await;
    let (mut admin, token) = (page.server.admin(), page.server.operate_token());
    let path = "/v1/keys/api_key/sk_live_secret/grant";
    assert_eq!(admin.call("POST", path, &token, "", r#"{"tokens":3,"for":"1h"}"#).status, 200);
    let chrome = &page.chrome;
    chrome.go("#/audit").await;
    chrome.wait_for_text("api_key sk_live…, grant").await;
    chrome.click("button", "Undo").await;
    chrome.click("dialog button", "Undo").await;
    chrome.wait_for_text("Undone.").await;
    let grants = admin.call("GET", "/v1/grants", &token, "", "").json();
    assert_eq!(grants["grants"].as_array().map(Vec::len), Some(0), "{grants}");
    page.assert_clean_console();
}

#[tokio::test]
async fn the_chart_moves_under_load() {
    let page = SignedIn::start().await;
    let chrome = &page.chrome;
    chrome.wait("document.querySelector('.chart text')").await;
    let allowed = "document.querySelector('.area.base')?.getAttribute('d')";
    let mut client = page.server.client();
    let mut load = || {
        let checks: Vec<String> =
            (0..50).map(|user| format!(r#"{{"user":"u{user}","endpoint":"/v1/orders/7"}}"#)).collect();
        assert_eq!(client.check_batch(&checks).status, 200);
    };
    let figure = "Number(document.querySelector('.stat b').firstChild.textContent.replace(',', '')) > 0";
    let deadline = tokio::time::Instant::now() + crate::process::PATIENCE;
    while chrome.value(figure).await != true {
        load();
        assert!(tokio::time::Instant::now() < deadline, "no decisions are shown");
    }
    let before = chrome.wait(allowed).await;
    load();
    chrome.wait(&format!("{allowed} !== {before}")).await;
    assert_eq!(chrome.value("document.querySelectorAll('.chart').length").await, 2);
    chrome.wait("document.querySelector('.shares')?.innerText.includes('orders')").await;

    // The crosshair has all values of its moment, also by keyboard.
    chrome.value("document.querySelector('.chart svg').focus()").await;
    chrome.key(Key::Left).await;
    let values = chrome
        .wait("!document.querySelector('.tip').hidden && document.querySelector('.tip').innerText")
        .await;
    for series in ["allowed", "limited", "denied", "degraded"] {
        assert!(values.as_str().unwrap().contains(series), "{values}");
    }
    // The legend switches a series off.
    chrome.click(".legend button", "allowed").await;
    chrome.wait(&format!("{allowed} === ''")).await;
    // A publish is marked on the time axis.
    page.publish(&super::RULES.replace("1000/s", "2000/s"), 1, "more");
    chrome.wait("document.querySelector('.flag.ok')").await;
    chrome.wait_for_text("published").await;
    chrome.wait("document.querySelector('#badge-rules').textContent === 'r2'").await;

    page.assert_clean_console();
}
