//! Every page: width of a phone, labels, contrast, in both schemes of colours.

use super::SignedIn;

const PAGES: [&str; 12] = [
    "#/overview",
    "#/rules",
    "#/rules/diff",
    "#/rules/preview",
    "#/rules/history",
    "#/keys",
    "#/keys/user/ann",
    "#/keys/ip/2001:db8:1234:5678:9abc:def0:1234:5678?endpoint=/v1/orders/7",
    "#/top",
    "#/nodes",
    "#/audit",
    "login",
];

/// Returns what is wrong with the page as it is shown: a list of texts.
const INSPECTION: &str = include_str!("inspection.js");

#[tokio::test]
async fn every_page_fits_is_labelled_and_has_contrast() {
    let page = SignedIn::start().await;
    let chrome = &page.chrome;
    for user in [
        "ann",
        "ann",
        "ann",
        "ann",
        "a-user-with-a-very-long-name-that-does-not-fit-into-a-narrow-column-of-a-phone",
    ] {
        page.check(user);
    }
    page.publish(&super::RULES.replace("1000/s", "900/s"), 1, &"a long message ".repeat(12));
    page.edit_rules().await;
    let draft = super::RULES
        .replace("1000/s", "800/s")
        .replace("per-address", &format!("per-address-{}", "x".repeat(60)));
    chrome.fill("textarea", &draft).await;
    let mut wrong = Vec::new();
    for (width, scheme) in [(1280, "light"), (390, "light"), (1280, "dark"), (390, "dark")] {
        chrome.emulate(width, 844, scheme);
        for name in PAGES {
            if name == "login" {
                chrome.click("#sign-out", "").await;
                chrome.wait("document.querySelector('#token')").await;
            } else {
                chrome.go(name).await;
                chrome
                    .wait("!document.querySelector('main .loading') && document.querySelector('main .card')")
                    .await;
            }
            let found = chrome.page.execute(INSPECTION, Vec::new()).await.unwrap();
            let found = found.as_array().unwrap().iter();
            wrong.extend(found.map(|text| format!("{name} {width} {scheme}: {}", text.as_str().unwrap())));
        }
        chrome.fill("#token", &page.token).await;
        chrome.click("button", "Sign in").await;
        chrome.wait("document.querySelector('#connection.good')").await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    page.assert_clean_console();
}
