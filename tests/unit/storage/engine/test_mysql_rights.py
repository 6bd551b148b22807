"""The lines of SHOW GRANTS on MariaDB and MySQL, and what they permit."""

from __future__ import annotations

import pytest

from escapement.storage.engine.mysql.rights import Rights

FOUR = ("SELECT", "INSERT", "UPDATE", "DELETE")


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("GRANT USAGE ON *.* TO `u`@`%`", [*FOUR]),
        ("GRANT ALL PRIVILEGES ON *.* TO `u`@`%` WITH GRANT OPTION", []),
        ('GRANT SELECT, INSERT, UPDATE, DELETE ON "shop".* TO "u"@"%"', []),
        ("GRANT SELECT, INSERT ON `shop`.* TO `u`@`%`", ["UPDATE", "DELETE"]),
        ("GRANT ALL PRIVILEGES ON `sh%`.* TO `u`@`%`", []),
        (r"GRANT ALL PRIVILEGES ON `sh\_p`.* TO `u`@`%`", [*FOUR]),
        ("GRANT ALL PRIVILEGES ON `sh_p`.* TO `u`@`%`", []),
        ("GRANT ALL PRIVILEGES ON `shop`.`other` TO `u`@`%`", [*FOUR]),
        (
            "GRANT SELECT (`a`, `b`), INSERT ON `shop`.`t` TO `u`@`%`",
            ["SELECT", "UPDATE", "DELETE"],
        ),
    ],
)
def test_missing_rights_on_a_table(line: str, missing: list[str]) -> None:
    """O7."""
    rights = Rights([line])
    assert rights.missing(FOUR, "shop", "t") == missing
    assert not rights.has_role


def test_rights_of_several_grants_add_up() -> None:
    lines = [
        "GRANT REPLICATION SLAVE ON *.* TO `u`@`10.%` IDENTIFIED BY PASSWORD '*0123'",
        "GRANT SELECT ON `shop`.* TO `u`@`10.%`",
        "GRANT UPDATE, DELETE ON `shop`.`t` TO `u`@`10.%`",
    ]
    rights = Rights(lines)
    assert rights.missing(("SELECT", "UPDATE", "DELETE"), "shop", "t") == []
    assert rights.missing(("SELECT", "UPDATE"), "shop") == ["UPDATE"]
    assert rights.everywhere() == {"REPLICATION SLAVE"}
    said = "GRANT INSERT ON `sh``op`.`t` TO 'u'@'10.%';"
    assert rights.grant(["INSERT"], "sh`op", "t") == said


@pytest.mark.parametrize("line", ["GRANT `writer` TO `u`@`%`", "GRANT `a`@`%`,`b`@`%` TO `u`@`%`"])
def test_role_may_grant_more(line: str) -> None:
    assert Rights([line]).has_role
